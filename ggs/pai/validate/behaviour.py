"""What OpenPAI 1.8.1, LTP 1.5 and a cluster with HiveD do with a file that has a finding, and which of their
source files says so. The documentation's last table is made of it."""

from __future__ import annotations

from typing import NamedTuple


class Behaviour(NamedTuple):
    """One check: what each system does. HiveD is a scheduler that either system may have; empty: no other."""

    openpai: str
    ltp: str
    hived: str
    source: str


_SAME = "the same"
_STORED = "202; nothing more"
_INIT = "202; the init container fails, counted"
_IMAGE = "202; the image check ends with 254"
_KUBERNETES = "202; Kubernetes refuses, -1100"
_SCHEMA = "rest-server config/v2/protocol.js"
_MIDDLEWARE = "rest-server middlewares/v2/protocol.js"
_JOB = "rest-server models/v2/job/k8s.js"
_ENV = "rest-server models/v2/job/runtime-env.js"
_HIVED = "rest-server config/v2/hived.js"
_HIVED_CODE = "rest-server middlewares/v2/hived.js"
_MASK = "rest-server utils/protocolSecret.js; database-controller common/framework.js"
_INITIALIZER = "openpai-runtime init.d/initializer.py"
_CHECKER = "openpai-runtime init.d/image_checker.py"
_PARSER = "openpai-runtime init.d/framework_parser.py"
_PLUGIN = "openpai-runtime plugins/*/init.py"
_SCRIPTS = "openpai-runtime runtime.d/runtime_entry.sh, user.sh"
_PORTAL = "webportal job-submission/models/protocol-schema.js"
_EXIT = "k8s-job-exit-spec config/k8s-job-exit-spec.yaml"
_FRAMEWORK = "frameworkcontroller crd.go"
_BODY = "rest-server config/express.js"

# openpai, ltp, hived, source: the checks that have them.
_GROUPS: tuple[tuple[Behaviour, str], ...] = (
    (Behaviour("413", _SAME, "", _BODY), "file-too-large"),
    (Behaviour("each byte becomes U+FFFD", _SAME, "", _BODY), "yaml-encoding"),
    (Behaviour("500 (js-yaml 3)", "500 (js-yaml 4)", "", _MIDDLEWARE),
     "yaml-syntax yaml-documents yaml-tag yaml-duplicate-key"),
    (Behaviour("202; up to about 480 levels work", _SAME, "", _INITIALIZER), "yaml-too-complex"),
    (Behaviour("202; works", _SAME, "", _MIDDLEWARE), "yaml-aliases"),
    (Behaviour("400 where text is needed, else 202 and the init container fails", _SAME, "", _INITIALIZER),
     "yaml-key"),
    (Behaviour("202; YAML 1.1 without yes and no", "202; YAML 1.2", "", _MIDDLEWARE), "yaml-scalar"),
    (Behaviour("400", _SAME, "", _SCHEMA),
     "schema-missing schema-unknown-key schema-empty schema-value schema-type"),
    (Behaviour("500, or 202 and the init container fails", _SAME, "", _JOB), "extras-type"),
    (Behaviour("400", "202", "", _SCHEMA), "job-type"),
    (Behaviour("400", "400", "", "LTP's rest-server config/v2/protocol.js"), "job-type-value"),
    (Behaviour("400", "400", "", "LTP's rest-server middlewares/v2/protocol.js"), "job-type-inference"),
    (Behaviour("202; works", "400 (ajv 8, js-yaml 4)", "", "LTP's rest-server config/v2/protocol.js"),
     "ltp-type"),
    (Behaviour("400", _SAME, "", _MIDDLEWARE),
     "prerequisite-unknown prerequisite-duplicate deployment-unknown deployment-duplicate"),
    (Behaviour("202; its commands do not run", _SAME, "", _MIDDLEWARE),
     "deployment-unused deployment-role-unknown"),
    (Behaviour(_IMAGE, _SAME, "", _CHECKER),
     "prerequisite-name-shared image-tag image-digest image-name image-auth-registryuri image-auth-registry"),
    (Behaviour(_IMAGE, "the same, but for *.azurecr.io", "", _CHECKER), "image-auth-unused"),
    (Behaviour("500", _SAME, "", _MIDDLEWARE), "image-auth-type template-unclosed"),
    (Behaviour("202; the password is shown", _SAME, "", _MASK), "image-auth-plain secret-in-parameters"),
    (Behaviour("202; works", "400 where the cluster has an imageRegex", "",
               "LTP's rest-server middlewares/v2/protocol.js"), "image-docker-hub"),
    (Behaviour("202; pulled at every start", _SAME, "", _JOB), "image-latest"),
    (Behaviour(_STORED, _SAME, "", _JOB), "image-unused"),
    (Behaviour("202; the plugin does not run", _SAME, "", _INITIALIZER),
     "prerequisite-inactive prerequisite-plugin-name plugin-role-unknown"),
    (Behaviour(_INIT, _SAME, "", _INITIALIZER), "init-yaml role-name template-not-text"),
    (Behaviour(_INIT, "the same; has dind too", "", _INITIALIZER), "plugin-unknown"),
    (Behaviour(_INIT, _SAME, "", f"{_INITIALIZER}, plugins/*/init.py"), "plugin-init"),
    (Behaviour("202; the task starts without it", _SAME, "", _INITIALIZER), "plugin-skipped"),
    (Behaviour("202; another text runs", _SAME, "", f"{_INITIALIZER}, plugins/plugin_utils.py"),
     "plugin-commands plugin-changed"),
    (Behaviour("202; counts as fail", _SAME, "", "openpai-runtime plugins/plugin_utils.py"),
     "plugin-failure-policy"),
    (Behaviour("202; becomes extras.storages", _SAME, "", _JOB), "plugin-deprecated"),
    (Behaviour("202; apt-get where sshd is missing", _SAME, "", "openpai-runtime plugins/ssh/init.py"),
     "plugin-ssh"),
    (Behaviour("202; no keys, 249 after 30 minutes", "202; keys, where ssh is allowed", "",
               "openpai-runtime plugins/ssh/init.py"), "plugin-ssh-barrier"),
    (Behaviour("202; fails without tensorboard in the image", "202; installs it with pip", "",
               "openpai-runtime plugins/tensorboard/tensorboard.sh.template"), "plugin-tensorboard"),
    (Behaviour("202; ports of the node", _SAME, "", _JOB), "plugin-tensorboard-port command-fixed-port"),
    (Behaviour("202; the roles become one", _SAME, "", "rest-server models/v2/utils/name.js"),
     "role-name-collision"),
    (Behaviour("500", _SAME, "", _JOB), "instances-missing storage-names"),
    (Behaviour("500", _SAME, "", "database-controller common/framework.js"), "notification-value"),
    (Behaviour(_KUBERNETES, _SAME, "", _FRAMEWORK), "instances-too-many completion-below-minus-one"),
    (Behaviour(_KUBERNETES, _SAME, "", _JOB),
     "resource-negative shm-negative storage-duplicate storage-mount-path"),
    (Behaviour("202; nothing is reserved", _SAME, "no cells for it", _JOB), "resource-zero"),
    (Behaviour("202; -1200 when it is used up", _SAME, "", _JOB), "memory-unit shm-over-memory"),
    (Behaviour("202; 512 MB", "202; 16384 MB", "", _JOB), "shm-missing"),
    (Behaviour(_STORED, _SAME, "", _SCHEMA), "container-option-unknown extras-unknown-key"),
    (Behaviour("202; WAITING without rdma/hca", _SAME, "", _JOB), "infiniband"),
    (Behaviour("202; no such port", _SAME, "", _PARSER), "port-count"),
    (Behaviour("202; 253, always retried", _SAME, "", "openpai-runtime init.d/port.py"), "port-many"),
    (Behaviour("202; decides the job's end", _SAME, "", _JOB),
     "completion-first-success completion-unreachable completion-failures-ignored completion-role-ends-job"),
    (Behaviour("202; ignored with a gang", _SAME, "", _JOB), "task-retry-ignored"),
    (Behaviour("202; no counted retry", _SAME, "", _JOB), "no-retry"),
    (Behaviour("202; taken for true", _SAME, "no gang for HiveD: only true is", _JOB), "gang-not-false"),
    (Behaviour("202; no barrier", _SAME, "", _PARSER), "gang-off"),
    (Behaviour("202; dropped", _SAME, "", _MIDDLEWARE), "template-kind"),
    (Behaviour("202; left, or empty with secrets; in a plugin the init container fails", _SAME, "",
               f"{_MIDDLEWARE}; {_INITIALIZER}"), "template-unknown"),
    (Behaviour("202; as JavaScript writes it", _SAME, "", _MIDDLEWARE), "template-structure value-changed"),
    (Behaviour("202; not replaced", _SAME, "", _MIDDLEWARE), "template-elsewhere template-nested"),
    (Behaviour("202; shown to all", _SAME, "", _MASK), "secret-not-masked"),
    (Behaviour("500", _SAME, "", _MASK), "secret-mask-syntax"),
    (Behaviour("202; gone for the init container", _SAME, "", _MASK), "secret-mask-loses"),
    (Behaviour("202; gone from the job's page", _SAME, "", _MASK), "secret-mask-hides"),
    (Behaviour("202; escaped by pystache", _SAME, "", "openpai-runtime common/utils.py"), "secret-escaped"),
    (Behaviour("202; bash stops, 255", _SAME, "", f"{_ENV}; {_PARSER}; {_SCRIPTS}"),
     "variable-pai-unknown variable-unset"),
    (Behaviour("202; the user's default storages", _SAME, "", _JOB), "storage-default"),
    (Behaviour(_STORED, _SAME, "", _JOB), "storage-nameless storage-none"),
    (Behaviour("202; the task goes on until it ends", "202; it ends with the script", "", _SCRIPTS),
     "command-background"),
    (Behaviour("202; always retried", _SAME, "", _EXIT), "command-endless-exit command-killing-timeout"),
    (Behaviour("202; the form trims lines", _SAME, "", "webportal job-submission/models/job-task-role.js"),
     "command-lines"),
    (Behaviour("202; works", "202; the form cuts there", "", "LTP's webportal job-submission"),
     "command-comment command-continuation"),
    (Behaviour("202; works", "202; 127 on AMD nodes", "", _JOB), "command-nvidia-smi"),
    (Behaviour("202; no ssh keys", "202; keys, where ssh is allowed", "",
               "openpai-runtime plugins/ssh/sshd.sh"), "command-ssh-launcher"),
    (Behaviour("202; each task is alone", _SAME, "", "torch distributed/run.py"), "command-standalone"),
    (Behaviour("202", _SAME, "400", _HIVED), "hived-type hived-priority"),
    (Behaviour("202", "403 without a grant", "", "LTP's rest-server middlewares/v2/quota.js"), "hived-prod"),
    (Behaviour("202", _SAME, "400", _HIVED_CODE), "hived-role-unknown hived-both hived-affinity"),
    (Behaviour("202", _SAME, "500 for an unknown SKU", _HIVED_CODE), "hived-sku"),
    (Behaviour("202", _SAME, "202; computed from gpu, cpu and memoryMB", _HIVED_CODE),
     "hived-number-ignored hived-without-gpu"),
    (Behaviour("202; the portal refuses it", _SAME, "", _PORTAL),
     "portal-plugin-key portal-plugin-parameters portal-deployment-name portal-empty-text portal-role-key "
     "portal-defaults portal-auth-key portal-infiniband"),
    (Behaviour("202; the portal refuses it", "400", "", _PORTAL), "portal-ports-null"),
)  # fmt: skip

BEHAVIOURS: dict[str, Behaviour] = {
    name: behaviour for behaviour, names in _GROUPS for name in names.split()
}
"""By check."""

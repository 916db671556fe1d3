"""The names of the variables that OpenPAI 1.8 and its successor LTP set in a task's container: the one table.

FrameworkController writes ``FC_*``, the REST server the ``PAI_*`` about the job, the runtime those about
addresses and ports. A name with braces is a template: ``RESOURCE.format(role="worker")``.
"""

import re
from functools import cache
from typing import Literal

Form = Literal[
    "identifier", "role", "roles", "number", "numbers", "address", "ports", "path", "url",
    "task list", "labelled ports", "endpoints",
]  # fmt: skip
"""What a variable's value looks like."""

ROLE_LIST = "PAI_TASK_ROLE_LIST"
ROLE_NAME = "PAI_CURRENT_TASK_ROLE_NAME"
TASK_INDEX = "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX"
JOB_NAME = "PAI_JOB_NAME"
JOB_ATTEMPT = "FC_FRAMEWORK_ATTEMPT_ID"
JOB_ATTEMPT_UID = "FC_FRAMEWORK_ATTEMPT_INSTANCE_UID"
TASK_COUNT = "PAI_TASK_ROLE_TASK_COUNT_{role}"
RESOURCE = "PAI_RESOURCE_{role}"
HOST_IP = "PAI_HOST_IP_{key}_{index}"
PORT_LIST = "PAI_PORT_LIST_{key}_{index}_{label}"
OLD_PORT = "PAI_{key}_{index}_{label}_PORT"
HOST_LIST = "PAI_TASK_ROLE_{key}_HOST_LIST"
OWN_PORT_LIST = "PAI_CONTAINER_HOST_{label}_PORT_LIST"

_BY_FORM: dict[Form, str] = {
    "identifier": f"{JOB_NAME} PAI_FRAMEWORK_NAME PAI_USER_NAME PAI_USERNAME PAI_VIRTUAL_CLUSTER "
    "FC_FRAMEWORK_NAMESPACE FC_FRAMEWORK_NAME FC_CONFIGMAP_NAME FC_POD_NAME FC_FRAMEWORK_UID "
    f"FC_CONFIGMAP_UID FC_TASKROLE_UID FC_TASK_UID FC_POD_UID {JOB_ATTEMPT_UID} "
    "FC_TASK_ATTEMPT_INSTANCE_UID",
    "role": f"{ROLE_NAME} FC_TASKROLE_NAME",
    "roles": f"{ROLE_LIST} PAI_JOB_TASK_ROLE_LIST",
    "number": f"{TASK_INDEX} PAI_TASK_INDEX PAI_TASK_ROLE_COUNT PAI_TASKS_NUM PAI_TASK_ROLES_NUM "
    f"PAI_JOB_TASK_COUNT PAI_JOB_TASK_ROLE_COUNT FC_TASK_INDEX {JOB_ATTEMPT} FC_TASK_ATTEMPT_ID "
    f"{TASK_COUNT} PAI_MIN_FAILED_TASK_COUNT_{{role}} PAI_MIN_SUCCEEDED_TASK_COUNT_{{role}}",
    "numbers": RESOURCE,
    "address": f"{HOST_IP} PAI_CURRENT_CONTAINER_IP PAI_CONTAINER_HOST_IP",
    "ports": f"{PORT_LIST} {OLD_PORT} {OWN_PORT_LIST} PAI_CURRENT_CONTAINER_PORT PAI_CONTAINER_HOST_PORT "
    "PAI_CONTAINER_SSH_PORT",
    "labelled ports": "PAI_CONTAINER_HOST_PORT_LIST",
    "task list": "PAI_TASK_ROLE_INSTANCES",
    "endpoints": HOST_LIST,
    "path": "PAI_WORK_DIR RUNTIME_LOG_PIPE",
    "url": "PAI_DEFAULT_FS_URI",
}
FORMS: dict[str, Form] = {name: form for form, names in _BY_FORM.items() for name in names.split()}
"""Every name and template, with the form of its values."""

_PARTS = {"role": r"\w+", "key": "[a-z0-9]+", "index": r"\d+", "label": r"\w+"}


@cache
def pattern(name: str) -> str:
    """A regular expression for a name of the table: a template's parts are named groups."""
    return re.sub(r"\{(\w+)\}", lambda part: f"(?P<{part[1]}>{_PARTS[part[1]]})", name)


def role_key(role: str) -> str:
    """A role's name as FrameworkController and the runtime write it: ``Worker_A`` is ``workera``."""
    return re.sub(r"[^a-z0-9]", "", role.lower())

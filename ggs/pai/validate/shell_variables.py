"""Variables in commands: bash runs them with nounset, so one that is not set ends the task."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ggs.pai.job.document import Path
from ggs.pai.validate import shell
from ggs.pai.validate.finding import JobView, Violation, rule

_FIXED = frozenset(
    (
        *("FC_FRAMEWORK_NAMESPACE", "FC_FRAMEWORK_NAME", "FC_FRAMEWORK_UID"),
        *("FC_FRAMEWORK_ATTEMPT_ID", "FC_FRAMEWORK_ATTEMPT_INSTANCE_UID", "FC_TASKROLE_NAME"),
        *("FC_TASKROLE_UID", "FC_TASK_INDEX", "FC_TASK_UID", "FC_TASK_ATTEMPT_ID"),
        *("FC_TASK_ATTEMPT_INSTANCE_UID", "FC_CONFIGMAP_NAME", "FC_CONFIGMAP_UID", "FC_POD_NAME"),
        *("FC_POD_UID", "PAI_FRAMEWORK_NAME", "PAI_JOB_NAME", "PAI_USER_NAME", "PAI_USERNAME"),
        *("PAI_DEFAULT_FS_URI", "PAI_VIRTUAL_CLUSTER", "PAI_TASKS_NUM", "PAI_TASK_ROLES_NUM"),
        *("PAI_TASK_ROLE_COUNT", "PAI_TASK_ROLE_LIST", "PAI_TASK_ROLE_INSTANCES"),
        *("PAI_JOB_TASK_COUNT", "PAI_JOB_TASK_ROLE_COUNT", "PAI_JOB_TASK_ROLE_LIST"),
        *("PAI_CURRENT_TASK_ROLE_NAME", "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX"),
        *("PAI_TASK_INDEX", "PAI_CURRENT_CONTAINER_IP", "PAI_CURRENT_CONTAINER_PORT"),
        *("PAI_CONTAINER_HOST_IP", "PAI_CONTAINER_HOST_PORT", "PAI_CONTAINER_HOST_PORT_LIST"),
        *("PAI_CONTAINER_SSH_PORT", "PAI_WORK_DIR", "RUNTIME_LOG_PIPE"),
    )
)
# Set on some tasks only: with GPUs or without, with HiveD or without.
_SOMETIMES = frozenset(["NVIDIA_VISIBLE_DEVICES", "HIVED_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"])
_PER_ROLE = re.compile(
    r"PAI_(?:TASK_ROLE_TASK_COUNT|RESOURCE|MIN_FAILED_TASK_COUNT|MIN_SUCCEEDED_TASK_COUNT)_(\w+)"
)
_ADDRESS = re.compile(r"PAI_HOST_IP_([a-z0-9]+)_(\d+)")
_PORT = re.compile(r"PAI_PORT_LIST_([a-z0-9]+)_(\d+)_(\w+)|PAI_([a-z0-9]+)_(\d+)_(\w+)_PORT")
_HOST_LIST = re.compile(r"PAI_TASK_ROLE_([a-z0-9]+)_HOST_LIST")
_CURRENT_PORT = re.compile(r"PAI_CONTAINER_HOST_(\w+)_PORT_LIST")
_LAUNCHERS = frozenset(
    ["MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "NNODES"]
)


def _unset(view: JobView) -> Iterator[tuple[Path, str, str]]:
    """Role, path and name of each variable that is used before the commands set it."""
    for role in view.roles:
        known = set(shell.ALWAYS_SET) | _SOMETIMES
        for path, text in view.commands(role):
            if shell.opens(text):
                break
            for name in shell.unset(text, known):
                yield path, role, name


@rule(
    "variable-pai-unknown",
    "error",
    consequence="bash stops with `unbound variable`: the task fails and is retried until "
    "jobRetryCount is used up",
    fix="use a role, index and port label that the job has",
)
def unknown_pai_variable(view: JobView) -> Iterator[Violation]:
    """PAI_ and FC_ variables are made from the job's roles, their instances and port labels.
    Addresses and ports use the lower-cased role without _; counts and resources the role as
    written."""
    for path, role, name in _unset(view):
        if name.startswith(("PAI_", "FC_")) and not _is_set(view, role, name):
            yield Violation(path, f"OpenPAI does not set {name} in this job")


@rule(
    "variable-unset",
    "warning",
    consequence="bash stops with `unbound variable` unless the image sets it: the task fails and "
    "is retried until jobRetryCount is used up",
    fix="set it in an earlier command, or write ${NAME:-default}",
)
def unset_variable(view: JobView) -> Iterator[Violation]:
    """Commands run with `set -o nounset`. OpenPAI sets none of torch's variables (MASTER_ADDR,
    RANK, WORLD_SIZE …), and a role cannot declare variables."""
    for path, _, name in _unset(view):
        if not name.startswith(("PAI_", "FC_")):
            fix = (
                "start the program with entrypoint.py, which sets it" if name in _LAUNCHERS else ""
            )
            yield Violation(path, f"nothing sets {name}", fix)


def _is_set(view: JobView, current_role: str, name: str) -> bool:
    if name in _FIXED:
        return True
    if match := _PER_ROLE.fullmatch(name):
        return match[1] in view.roles
    names = {re.sub(r"[^a-z0-9]", "", role.lower()): role for role in view.roles}
    if match := _HOST_LIST.fullmatch(name):
        return match[1] in names
    if match := _ADDRESS.fullmatch(name):
        return match[1] in names and int(match[2]) < view.instances(names[match[1]])
    if match := _CURRENT_PORT.fullmatch(name):
        return match[1] in _labels(view, current_role)
    if match := _PORT.fullmatch(name):
        role, index, label = (part for part in match.groups() if part is not None)
        if role not in names or int(index) >= view.instances(names[role]):
            return False
        return label in _labels(view, names[role])
    return False


def _labels(view: JobView, role: str) -> set[str]:
    ports = view.mapping("taskRoles", role, "resourcePerInstance", "ports")
    return {*ports, "ssh", "http"}

"""Variables in commands: bash runs them with nounset, so one that is not set ends the task."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ggs.launch import pai_names
from ggs.pai.job.document import Path
from ggs.pai.validate import shell
from ggs.pai.validate.finding import JobView, Violation, rule

# Set on some tasks only: with GPUs or without, with HiveD or without.
_SOMETIMES = frozenset(["NVIDIA_VISIBLE_DEVICES", "HIVED_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"])
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


def _is_set(view: JobView, own_role: str, name: str) -> bool:
    parts = (re.fullmatch(pai_names.pattern(template), name) for template in pai_names.FORMS)
    return any(_has(view, own_role, **match.groupdict()) for match in parts if match)


def _has(
    view: JobView,
    own_role: str,
    role: str | None = None,
    key: str | None = None,
    index: str = "0",
    label: str | None = None,
) -> bool:
    """Whether the job has what the parts of a variable's name stand for."""
    if role is not None and role not in view.roles:
        return False
    if key is not None:
        roles = {pai_names.role_key(name): name for name in view.roles}
        if key not in roles or int(index) >= view.instances(roles[key]):
            return False
        own_role = roles[key]
    return label is None or label in _labels(view, own_role)


def _labels(view: JobView, role: str) -> set[str]:
    ports = view.mapping("taskRoles", role, "resourcePerInstance", "ports")
    return {*ports, "ssh", "http"}

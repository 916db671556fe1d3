"""What stands under `extras`: its keys and storages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from ggs.pai.job.document import Path
from ggs.pai.job.protocol import PLUGIN_PREFIX
from ggs.pai.job.scalars import to_text, to_truth
from ggs.pai.validate.finding import JobView, Violation, rule

_KNOWN = (
    "gangAllocation",
    "storages",
    PLUGIN_PREFIX,
    "hivedScheduler",
    "submitFrom",
    "jobStatusChangeNotification",
)
# What PostgreSQL takes for a truth value.
_TRUTH = re.compile(
    r"\s*(t(r(ue?)?)?|f(a(l(se?)?)?)?|y(es?)?|no?|on|off?|of|0|1)\s*", re.IGNORECASE | re.ASCII
)
_KNOWN_TO_LTP = ("enableLocalStorage", "allowAzCopy", "forceNodes")


@rule(
    "extras-unknown-key",
    "warning",
    consequence="the server silently ignores it",
    fix="remove it",
)
def extras_key(view: JobView) -> Iterator[Violation]:
    """extras is open: a misspelt key has no effect and is not refused."""
    for key in view.extras:
        if key not in (*_KNOWN, *_KNOWN_TO_LTP):
            close = difflib.get_close_matches(key, _KNOWN, 1)
            fix = f"did you mean {close[0]}?" if close else ""
            if key == "storageConfigNames":
                fix = "write storages: [{name: …}]"
            yield Violation(("extras", key), f"the key {key} is unknown", fix)


@rule(
    "notification-value",
    "error",
    consequence="the server answers 500: invalid input syntax for type boolean",
    fix="write true or false",
)
def notification(view: JobView) -> Iterator[Violation]:
    """jobStatusChangeNotification's running, succeeded, failed, stopped and retried become columns of truth
    values in the database."""
    for key in ("running", "succeeded", "failed", "stopped", "retried"):
        path = ("extras", "jobStatusChangeNotification", key)
        value = view.document.get(*path)
        if isinstance(value, (dict, list)) or (
            value is not None and not _TRUTH.fullmatch(to_text(value))
        ):
            yield Violation(path, f"{to_text(value)!r} is no truth value")


@rule(
    "storage-names",
    "error",
    consequence="the server answers 500: storageConfigNames.map is not a function",
    fix="write extras.storages: [{name: …}]",
)
def storage_names(view: JobView) -> Iterator[Violation]:
    """The server rewrites teamwise_storage's storageConfigNames, a list, to storages where the job has
    none."""
    if to_truth(view.extras.get("storages")):
        return
    for path, item in view.plugins():
        names = view.document.get(*path, "parameters", "storageConfigNames")
        if item.get("plugin") != "teamwise_storage":
            continue
        if to_truth(names) and not isinstance(names, list):
            yield Violation(
                (*path, "parameters", "storageConfigNames"), "storageConfigNames is no list"
            )


@rule(
    "storage-default",
    "warning",
    consequence="all default storages of whoever submits the job are mounted",
    fix="name the storages, or leave the key out",
)
def default_storages(view: JobView) -> Iterator[Violation]:
    """An empty list of storages is not the same as none."""
    if view.extras.get("storages") == []:
        yield Violation(("extras", "storages"), "storages is empty")


@rule(
    "storage-nameless",
    "warning",
    consequence="the server silently ignores it: nothing is mounted",
    fix="write - name: <storage>",
)
def nameless_storage(view: JobView) -> Iterator[Violation]:
    """A storage is found by its name."""
    for path, item in view.items("extras", "storages"):
        if not item.get("name"):
            yield Violation(path, "the storage has no name")


@rule(
    "storage-duplicate",
    "error",
    consequence="stored, then FAILED with -1100: Kubernetes refuses the pod",
    fix="name each storage once, and give each a mountPath of its own",
)
def duplicate_storage(view: JobView) -> Iterator[Violation]:
    """A pod may not have two volumes of one name or two mounts at one path."""
    names: set[str] = set()
    targets: set[str] = set()
    for path, name, target in _storages(view):
        if name in names:
            yield Violation(path, f"the storage {name!r} is named twice")
        elif target in targets:
            yield Violation(path, f"two storages are mounted at {target}")
        names.add(name)
        targets.add(target)


@rule(
    "storage-mount-path",
    "error",
    consequence="stored, then FAILED with -1100, or a task whose runtime or system is hidden "
    "behind the storage",
    fix="choose an absolute path such as /mnt/<name>, outside /usr/local/pai",
)
def mount_path(view: JobView) -> Iterator[Violation]:
    """A mount path is absolute, holds no colon, and may not hide OpenPAI's runtime in
    /usr/local/pai or the system's folders."""
    reserved = r"/(usr(/local(/pai(/.*)?)?)?|bin|sbin|lib|lib64|etc|dev|dev/shm|proc|sys)?/*"
    for path, _, target in _storages(view):
        if not target.startswith("/") or ":" in target or re.fullmatch(reserved, target):
            yield Violation((*path, "mountPath"), f"{target!r} cannot be mounted over")


def _storages(view: JobView) -> Iterator[tuple[Path, str, str]]:
    """Path, name and mount path of each storage that is mounted."""
    for path, item in view.items("extras", "storages"):
        name, target = item.get("name"), item.get("mountPath")
        if isinstance(name, str) and name:
            yield path, name, target if isinstance(target, str) and target else f"/mnt/{name}"


@rule(
    "storage-none",
    "warning",
    consequence="what a task writes is gone with its container: a retry starts from nothing, and "
    "the weights are lost",
    fix="name a storage under extras.storages and keep checkpoints and weights there",
)
def no_storage(view: JobView) -> Iterator[Violation]:
    """A container's disk does not outlive the attempt; jobs with GPUs have something to lose."""
    legacy = any(item.get("plugin") == "teamwise_storage" for _, item in view.plugins())
    if any(view.gpus(role) for role in view.roles) and "storages" not in view.extras and not legacy:
        yield Violation(("extras", "storages"), "the job has GPUs and no storage")

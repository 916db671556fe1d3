"""The HiveD scheduler's settings, which only clusters with HiveD read."""

from __future__ import annotations

from collections.abc import Iterator

from ggs.pai.job.document import Path
from ggs.pai.validate.finding import JobView, Violation, rule


@rule(
    "hived-type",
    "error",
    consequence="a HiveD cluster answers 400; others ignore it",
    fix="write a mapping with a value for each key, or remove the key",
)
def hived_type(view: JobView) -> Iterator[Violation]:
    """hivedScheduler is a mapping, and its keys have values: HiveD clusters check it with a schema of
    their own."""
    if view.extras.get("hivedScheduler", {}) is None:
        yield Violation(("extras", "hivedScheduler"), "a value is missing after the colon")
    for path, error in view.refusals:
        if path[:2] == ("extras", "hivedScheduler") and path[-1] != "jobPriorityClass":
            yield Violation(path, f"{path[-1]}: {error['msg']}")


@rule(
    "hived-priority",
    "error",
    consequence="a HiveD cluster answers 400; others ignore it",
    fix="write prod, test or oppo, or leave it out",
)
def hived_priority(view: JobView) -> Iterator[Violation]:
    """jobPriorityClass is prod, test or oppo; crit stands in the protocol but not in the
    server."""
    settings = view.mapping("extras", "hivedScheduler")
    value = settings.get("jobPriorityClass")
    if "jobPriorityClass" in settings and value not in ("prod", "test", "oppo"):
        path = ("extras", "hivedScheduler", "jobPriorityClass")
        message = (
            "a value is missing" if value is None else f"the priority {value!r} does not exist"
        )
        yield Violation(path, message)


@rule(
    "hived-prod",
    "warning",
    target="ltp",
    consequence="LTP answers 403 to a user without a grant for it",
    fix="leave it out, or write oppo",
)
def hived_prod(view: JobView) -> Iterator[Violation]:
    """Priority prod needs a grant on LTP."""
    if view.document.get("extras", "hivedScheduler", "jobPriorityClass") == "prod":
        path = ("extras", "hivedScheduler", "jobPriorityClass")
        yield Violation(path, "the priority is prod")


@rule(
    "hived-role-unknown",
    "error",
    consequence="a HiveD cluster answers 400: Taskrole … does not exist",
    fix="use the names of the job's roles",
)
def hived_role(view: JobView) -> Iterator[Violation]:
    """hivedScheduler.taskRoles has roles of the job."""
    for role in view.mapping("extras", "hivedScheduler", "taskRoles"):
        if role not in view.roles:
            yield Violation(_hived(role), f"there is no role {role!r}")


@rule(
    "hived-both",
    "error",
    consequence="a HiveD cluster answers 400: only one is allowed",
    fix="keep skuType or pinnedCellId",
)
def hived_both(view: JobView) -> Iterator[Violation]:
    """A role is placed by the kind of its cells or by pinned cells."""
    for role in view.roles:
        settings = view.mapping(*_hived(role))
        if settings.get("skuType") is not None and settings.get("pinnedCellId") is not None:
            yield Violation((*_hived(role), "pinnedCellId"), "skuType and pinnedCellId together")


@rule(
    "hived-affinity",
    "error",
    consequence="a HiveD cluster answers 400: AffinityGroup … has inconsistent skuType or "
    "pinnedCellId",
    fix="give all roles of an affinity group the same skuType or pinnedCellId",
)
def hived_affinity(view: JobView) -> Iterator[Violation]:
    """The roles of an affinity group share their kind of cells."""
    groups: dict[object, tuple[object, object]] = {}
    for role in view.mapping("extras", "hivedScheduler", "taskRoles"):
        settings = view.mapping(*_hived(role))
        group = settings.get("affinityGroupName")
        if isinstance(group, str):
            cells = (settings.get("skuType"), settings.get("pinnedCellId"))
            if groups.setdefault(group, cells) != cells:
                message = f"the group {group!r} uses different cells elsewhere"
                yield Violation((*_hived(role), "affinityGroupName"), message)


@rule(
    "hived-sku",
    "warning",
    consequence="500 on a HiveD cluster without cells of that name; without HiveD no effect",
    fix="leave skuType out unless the file is for one cluster",
)
def hived_sku(view: JobView) -> Iterator[Violation]:
    """The names of cells differ from cluster to cluster, and an unknown one breaks the server."""
    for role in view.mapping("extras", "hivedScheduler", "taskRoles"):
        for key in ("skuType", "pinnedCellId"):
            value = view.document.get(*_hived(role), key)
            if value is not None:
                yield Violation((*_hived(role), key), f"{key} {value!r} belongs to one cluster")


@rule(
    "hived-number-ignored",
    "warning",
    consequence="the server computes the number of cells from gpu, cpu and memoryMB",
    fix="remove it, and set resourcePerInstance",
)
def hived_number(view: JobView) -> Iterator[Violation]:
    """skuNum is a note of the portal to itself."""
    for role in view.mapping("extras", "hivedScheduler", "taskRoles"):
        for key in ("skuNum", "skuNumber"):
            if view.document.get(*_hived(role), key) is not None:
                yield Violation((*_hived(role), key), f"{key} has no effect")


@rule(
    "hived-without-gpu",
    "warning",
    consequence="the role takes whole cells, with their GPUs, for its CPUs and memory",
    fix="ask for GPUs, or run such tasks on a cluster without HiveD",
)
def hived_without_gpu(view: JobView) -> Iterator[Violation]:
    """HiveD hands out cells; a role with gpu: 0 pays for its CPUs with cells."""
    if "hivedScheduler" in view.extras:
        for role in view.roles:
            path = ("taskRoles", role, "resourcePerInstance", "gpu")
            if view.integer(*path) == 0:
                yield Violation(path, "gpu is 0 on a HiveD cluster")


def _hived(role: str) -> Path:
    return ("extras", "hivedScheduler", "taskRoles", role)

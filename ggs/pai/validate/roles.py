"""Task roles: names, sizes, resources, ports."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ggs.launch.pai_names import role_key
from ggs.pai.job.document import Path
from ggs.pai.validate.finding import JobView, Violation, rule
from ggs.pai.validate.init_container import INIT_FAILS

_NAME = re.compile(r"[a-z0-9]{1,63}")
_SCHEMA_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_MAX_INSTANCES = 10_000
_MAX_PORTS = 10
_OPENPAI_SHM = 512
_LTP_SHM = 16384


@rule(
    "role-name",
    "error",
    consequence="accepted by the server, refused by the portal; the init container dies with a "
    "KeyError on every attempt, until jobRetryCount is used up",
    fix="use 1 to 63 lower-case letters and digits",
)
def role_name(view: JobView) -> Iterator[Violation]:
    """The scheduler lower-cases a role's name and drops what is not a letter or digit; the
    runtime then looks the role up under the new name. The rule in effect is [a-z0-9]{1,63}, without
    true, false, null, yes, no, on and off, which YAML 1.1 takes for other things than text."""
    for role in view.roles:
        if _SCHEMA_NAME.fullmatch(role) and not _NAME.fullmatch(role):
            message = f"the role name {role!r} becomes {role_key(role)!r} on the way"
            yield Violation(
                ("taskRoles", role), message if len(role) <= 63 else f"{len(role)} letters"
            )
        elif _is_lost(view, role):
            message = f"the init container reads {role!r} as a truth value or null, not as text"
            fix = "choose another name, or put it between quotes"
            yield Violation(
                ("taskRoles", role), message, fix, f"the server answers 202; then {INIT_FAILS}"
            )


def _is_lost(view: JobView, role: str) -> bool:
    stored = view.in_container
    known = stored.get("taskRoles") if isinstance(stored, dict) else None
    return isinstance(known, dict) and role not in known


@rule(
    "role-name-collision",
    "error",
    consequence="the two roles silently become one: tasks and variables are mixed up",
    fix="choose names that differ in their letters and digits",
)
def role_collision(view: JobView) -> Iterator[Violation]:
    """worker_1 and worker1 are the same role for the scheduler."""
    seen: dict[str, str] = {}
    for role in view.roles:
        other = seen.setdefault(role_key(role), role)
        if other != role:
            yield Violation(("taskRoles", role), f"{role!r} and {other!r} are one name")


@rule(
    "instances-missing",
    "error",
    consequence='the server answers 500: invalid input syntax for type integer: "NaN"',
    fix="write instances, also when it is 1",
)
def instances_missing(view: JobView) -> Iterator[Violation]:
    """instances is optional in the schema, but the server multiplies it by gpu and stores NaN in
    an integer column."""
    for role, values in view.roles.items():
        if "instances" not in values:
            yield Violation(("taskRoles", role, "instances"), "instances is missing")


@rule(
    "instances-too-many",
    "error",
    consequence="stored, then FAILED with -1100: Kubernetes refuses the framework",
    fix=f"use at most {_MAX_INSTANCES}",
)
def instances_too_many(view: JobView) -> Iterator[Violation]:
    """The scheduler's own schema allows 10000 tasks a role."""
    for role in view.roles:
        if view.instances(role) > _MAX_INSTANCES:
            message = f"{view.instances(role)} instances"
            yield Violation(("taskRoles", role, "instances"), message)


@rule(
    "resource-negative",
    "error",
    consequence="stored, then FAILED with -1100: Kubernetes refuses the pod",
    fix="ask for at least 1 CPU, some memory, and 0 or more GPUs",
)
def resource_negative(view: JobView) -> Iterator[Violation]:
    """The server's schema allows any integer; a negative amount fails only in Kubernetes."""
    for path, value in _resources(view):
        if value < 0:
            yield Violation(path, f"{path[-1]} is {value}")


@rule(
    "resource-zero",
    "warning",
    consequence="Kubernetes reserves nothing: the task starves or is evicted first",
    fix="ask for what the task needs",
)
def resource_zero(view: JobView) -> Iterator[Violation]:
    """cpu: 0 or memoryMB: 0 is accepted and means that nothing is reserved."""
    for path, value in _resources(view):
        if value == 0 and path[-1] != "gpu":
            yield Violation(path, f"{path[-1]} is 0")


@rule(
    "memory-unit",
    "warning",
    consequence="the task is killed for its memory (-1200) as soon as Python starts; never retried",
    fix="memoryMB counts megabytes: 16 GB are 16384",
)
def memory_unit(view: JobView) -> Iterator[Violation]:
    """memoryMB counts megabytes; a value under 100 was probably meant as gigabytes."""
    for path, value in _resources(view):
        if path[-1] == "memoryMB" and 0 < value < 100:
            yield Violation(path, f"memoryMB is {value}: too little for any framework")


def _resources(view: JobView) -> Iterator[tuple[Path, int]]:
    for role in view.roles:
        for key in ("cpu", "memoryMB", "gpu"):
            path = ("taskRoles", role, "resourcePerInstance", key)
            value = view.integer(*path)
            if value is not None:
                yield path, value


@rule(
    "shm-missing",
    "warning",
    consequence=f"/dev/shm gets {_OPENPAI_SHM} MB on OpenPAI 1.8.1 (data loader workers die of a "
    f"bus error, exit code 135, never retried) and {_LTP_SHM} MB on LTP",
    fix="write extraContainerOptions.shmMB: a quarter to a half of memoryMB",
)
def shm_missing(view: JobView) -> Iterator[Violation]:
    """The default size of /dev/shm differs between OpenPAI and LTP, and is too small for data
    loaders on the one or more than the job's memory on the other."""
    for role in view.roles:
        if not view.integer("taskRoles", role, "extraContainerOptions", "shmMB"):
            path = ("taskRoles", role, "extraContainerOptions", "shmMB")
            if view.document.get(*path) in (None, 0):
                yield Violation(path, "the size of /dev/shm is left to the cluster")


@rule(
    "shm-over-memory",
    "error",
    consequence="a task that fills /dev/shm is killed for its memory (-1200): never retried",
    fix="make memoryMB larger than shmMB plus what the program needs",
)
def shm_over_memory(view: JobView) -> Iterator[Violation]:
    """/dev/shm counts towards the task's memory limit."""
    for role in view.roles:
        shm = view.integer("taskRoles", role, "extraContainerOptions", "shmMB")
        memory = view.integer("taskRoles", role, "resourcePerInstance", "memoryMB")
        if shm is not None and memory is not None and shm >= memory > 0:
            path = ("taskRoles", role, "extraContainerOptions", "shmMB")
            yield Violation(path, f"shmMB {shm} is not less than memoryMB {memory}")


@rule(
    "shm-negative",
    "error",
    consequence="stored, then FAILED with -1100: Kubernetes refuses the volume",
    fix="write a positive number of megabytes",
)
def shm_negative(view: JobView) -> Iterator[Violation]:
    """shmMB becomes the size limit of a Kubernetes volume."""
    for role in view.roles:
        path = ("taskRoles", role, "extraContainerOptions", "shmMB")
        shm = view.integer(*path)
        if shm is not None and shm < 0:
            yield Violation(path, f"shmMB is {shm}")


@rule(
    "container-option-unknown",
    "warning",
    consequence="the server silently ignores it, the portal refuses the file",
    fix="use shmMB or infiniband",
)
def container_option(view: JobView) -> Iterator[Violation]:
    """extraContainerOptions knows shmMB and infiniband; a slip in the schema lets anything in."""
    for role in view.roles:
        for key in view.mapping("taskRoles", role, "extraContainerOptions"):
            if key not in ("shmMB", "infiniband"):
                path = ("taskRoles", role, "extraContainerOptions", key)
                yield Violation(path, f"the option {key} is unknown")


@rule(
    "infiniband",
    "warning",
    consequence="WAITING for ever on a cluster whose nodes offer no rdma/hca",
    fix="leave it out unless the cluster has the device plugin; on LTP ask for whole nodes too",
)
def infiniband(view: JobView) -> Iterator[Violation]:
    """infiniband: true (or any other value that JavaScript takes for true) asks for rdma/hca: 1,
    which only nodes with a device plugin have."""
    for role in view.roles:
        path = ("taskRoles", role, "extraContainerOptions", "infiniband")
        if view.document.get(*path):
            yield Violation(path, "the job asks for an InfiniBand device")


@rule(
    "port-count",
    "error",
    consequence="the label has no port: its variables are missing or empty, and a command that "
    "uses one stops",
    fix="ask for at least 1",
)
def port_count(view: JobView) -> Iterator[Violation]:
    """The number beside a label is how many ports it gets, not a port's number."""
    for role in view.roles:
        ports = view.mapping("taskRoles", role, "resourcePerInstance", "ports")
        for label, count in ports.items():
            if isinstance(count, int) and count < 1:
                path = ("taskRoles", role, "resourcePerInstance", "ports", label)
                yield Violation(path, f"{label} gets {count} ports")


@rule(
    "port-many",
    "warning",
    consequence="the init container exits with 253 whenever two ports collide: with many ports "
    "that is every time, and it is retried for ever",
    fix=f"ask for at most {_MAX_PORTS} ports in all, usually 1",
)
def port_many(view: JobView) -> Iterator[Violation]:
    """Ports are hashes of the pod's id, reserved by nobody. The number beside a label is how many
    it gets: a port number written there asks for thousands."""
    for role in view.roles:
        path = ("taskRoles", role, "resourcePerInstance", "ports")
        counts = [count for count in view.mapping(*path).values() if isinstance(count, int)]
        if sum(counts) > _MAX_PORTS:
            yield Violation(path, f"{sum(counts)} ports a task")

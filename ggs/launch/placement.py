"""Where the workers of a job run: which task this is, which ranks it has, and where all meet.

    placement = place(os.environ, LaunchOptions(workers=2), Devices(visible=0, supported=False))
    print(placement)        # the first line of a job's log
    worker_variables(placement, os.environ)     # what the workers get on top of their environment

One way in for all shapes: an OpenPAI job of one or several roles, one task alone, an array job whose
tasks do not know each other, nodes numbered by NNODES and NODE_RANK, and no cluster at all.
Nothing here imports torch.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ggs.dist.backend import choose_backend
from ggs.errors import ConfigurationError, DeviceError, EnvironmentVariableError
from ggs.launch import pai_names
from ggs.launch.endpoint import Endpoint, check_interface, find_endpoint, interface_variables
from ggs.launch.environment import MAX_TASKS, PAIEnvironment, TaskRole, integer

BACKENDS = ("auto", "gloo", "nccl")
MAX_WORKERS = 1024
"""Workers of one task."""


@dataclass(frozen=True)
class LaunchOptions:
    """What a person chooses about a launch. Raises ConfigurationError for an impossible choice."""

    workers: int | None = None
    """Worker processes per task; None: one per GPU, or one."""
    backend: str = "auto"
    """``nccl`` (RCCL on AMD), ``gloo``, or ``auto``: NCCL where every worker has a GPU to itself."""
    rendezvous_timeout: float = 1800
    """Seconds that tasks wait for each other at the start: images are pulled, one node after another."""
    finish_timeout: float = 3600
    """Seconds that the last worker may take to end after the first has ended well."""
    roles: tuple[str, ...] = ()
    """OpenPAI roles whose tasks train together, ranked in the job's own order; empty: all."""
    independent: bool = False
    """Every task trains alone, and none waits for another: an array job."""
    cpu: bool = False
    """Do not use GPUs, even where the task has some."""
    threads: int = 0
    """CPU threads per worker; 0: the task's CPUs, shared between its workers."""

    def __post_init__(self) -> None:
        if self.workers is not None and not 1 <= self.workers <= MAX_WORKERS:
            raise ConfigurationError(f"workers={self.workers} is not between 1 and {MAX_WORKERS}")
        if self.backend not in BACKENDS:
            raise ConfigurationError(
                f"backend={self.backend!r} is not one of {', '.join(BACKENDS)}"
            )
        if not 0 < self.rendezvous_timeout <= 7 * 24 * 3600:
            raise ConfigurationError(
                f"rendezvous_timeout={self.rendezvous_timeout} is not between 0 and 604800 seconds"
            )


@dataclass(frozen=True)
class Devices:
    """What PyTorch sees on this machine."""

    visible: int
    """``torch.cuda.device_count()``."""
    supported: bool
    """Whether this build of PyTorch can use GPUs at all."""


@dataclass(frozen=True)
class Placement:
    """A launch, decided; the same on every task but for ``node`` and ``interface``."""

    tasks: tuple[str, ...]
    """Names of the nodes in the order of their ranks, such as ``chief-0``, ``worker-0``."""
    node: int
    """Index of this node in ``tasks``: NODE_RANK."""
    workers: tuple[int, ...]
    """Worker processes of every node."""
    master: str
    """IP address of the first node, which all others connect to."""
    ports: tuple[int, ...]
    """Ports of the first node to meet on, tried in this order; empty: any free one (one node only)."""
    interface: str | None
    """Network interface that owns this node's address; None: left to the libraries."""
    backend: str
    """``nccl`` or ``gloo``."""
    run_id: str
    """The same on all nodes of one attempt, and on no other."""
    rendezvous_timeout: float
    """Seconds."""
    finish_timeout: float
    """Seconds."""
    threads: int
    """CPU threads for each worker of this node."""
    hide_gpus: bool
    """Whether the workers must not see GPUs: the task was given none, or the CPU was asked for."""

    @property
    def task(self) -> str:
        """The name of this node."""
        return self.tasks[self.node]

    @property
    def local_world_size(self) -> int:
        """Workers of this node."""
        return self.workers[self.node]

    @property
    def first_rank(self) -> int:
        """The lowest global rank on this node."""
        return sum(self.workers[: self.node])

    @property
    def world_size(self) -> int:
        """Workers of all nodes."""
        return sum(self.workers)

    @property
    def layout(self) -> str:
        """What all nodes must agree on, in words; nodes that differ here cannot work together."""
        runs = [(count, len(list(group))) for count, group in groupby(self.workers)]
        per_task = ", ".join(f"{tasks} x {count}" for count, tasks in runs)
        return f"{len(self.tasks)} tasks with workers {per_task}; backend {self.backend}"

    def __str__(self) -> str:
        last = self.first_rank + self.local_world_size - 1
        ports = ",".join(map(str, self.ports)) or "free"
        return (
            f"ggs: task={self.task}({len(self.tasks)}) ranks={self.first_rank}-{last}"
            f"({self.world_size}) master={self.master}:{ports} backend={self.backend} "
            f"interface={self.interface or 'any'} threads={self.threads} run={self.run_id}"
        )


def place(variables: Mapping[str, str], options: LaunchOptions, devices: Devices) -> Placement:
    """Decide a launch from the environment. Changes nothing.

    NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT win where a person has set them. Raises
    EnvironmentVariableError or ConfigurationError for what no retry cures, and DeviceError if GPUs
    that OpenPAI promised to this task are not there.
    """
    check_interface(variables)
    environment = PAIEnvironment.from_mapping(variables)
    if environment is None:
        if options.roles:
            raise ConfigurationError(f"roles={','.join(options.roles)} needs an OpenPAI job")
        members, node = [(TaskRole("local", 1, None, None, None, None), 0)], 0
    else:
        members, node = _members(environment, options)
    roles = [role for role, _ in members]
    tasks = [f"{role.name}-{index}" for role, index in members]
    role = roles[node]
    _check_devices(role, options, devices)
    if "NNODES" in variables or "NODE_RANK" in variables:
        tasks, node = _numbered_nodes(variables)
        roles = [role] * len(tasks)
    workers = tuple(_worker_count(role, options, devices) for role in roles)
    endpoint = find_endpoint(variables, environment, roles)
    return Placement(
        tasks=tuple(tasks),
        node=node,
        workers=workers,
        master=endpoint.master,
        ports=endpoint.ports,
        interface=endpoint.interface,
        backend=_backend(roles, workers, options, devices),
        run_id=_run_id(environment, endpoint),
        rendezvous_timeout=options.rendezvous_timeout,
        finish_timeout=options.finish_timeout,
        threads=threads_per_worker(options.threads, workers[node], role.cpus),
        hide_gpus=options.cpu or role.gpus == 0,
    )


def threads_per_worker(chosen: int, workers: int, cpus: int | None = None) -> int:
    """CPU threads of each of a task's ``workers``: as chosen, or for 0 its share of the cores that this
    process may use, of which the task has ``cpus``."""
    usable = len(os.sched_getaffinity(0))
    return chosen or max(1, min(usable, cpus or usable) // workers)


def worker_variables(placement: Placement, variables: Mapping[str, str]) -> dict[str, str]:
    """Variables to add to the environment of this node's workers; none that is already set.

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT are not
    among them: torch's launcher sets those.
    """
    wanted = {
        "NNODES": str(len(placement.tasks)),
        "NODE_RANK": str(placement.node),
        "GGS_BACKEND": placement.backend,
        "OMP_NUM_THREADS": str(placement.threads),
        "PYTHONUNBUFFERED": "1",
    }
    wanted |= interface_variables(placement.interface)
    if placement.hide_gpus:
        wanted["CUDA_VISIBLE_DEVICES"] = ""
    return {name: value for name, value in wanted.items() if name not in variables}


def is_worker(variables: Mapping[str, str]) -> bool:
    """Whether this process is a worker already, started by torchrun or by a person's own launcher.

    Raises EnvironmentVariableError if only a part of what makes a worker is set.
    """
    if not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & set(variables):
        return False
    required = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in required if name not in variables]
    if missing:
        raise EnvironmentVariableError(
            f"{', '.join(missing)} not set, but others of RANK, WORLD_SIZE, LOCAL_RANK are: set all of "
            f"{', '.join(required)} to start workers yourself, or none of them"
        )
    world_size = integer("WORLD_SIZE", variables["WORLD_SIZE"], low=1, high=MAX_TASKS * MAX_WORKERS)
    integer("RANK", variables["RANK"], low=0, high=world_size - 1)
    integer("MASTER_PORT", variables["MASTER_PORT"], low=1, high=65535)
    integer("LOCAL_RANK", variables.get("LOCAL_RANK", "0"), low=0, high=MAX_WORKERS - 1)
    return True


def _members(
    environment: PAIEnvironment, options: LaunchOptions
) -> tuple[list[tuple[TaskRole, int]], int]:
    """The tasks that train together, each a role and an index, and which of them this one is."""
    chosen = [environment.find_role(name) for name in options.roles] or list(environment.roles)
    if environment.role not in chosen:
        raise ConfigurationError(
            f"roles={','.join(options.roles)} does not include {environment.role.name!r}, the role of "
            "this task"
        )
    this = (environment.role, environment.index)
    if options.independent:
        return [this], 0
    members = [
        (role, index) for role in environment.roles if role in chosen for index in range(role.tasks)
    ]
    return members, members.index(this)


def _numbered_nodes(variables: Mapping[str, str]) -> tuple[list[str], int]:
    nodes = integer("NNODES", variables.get("NNODES", "1"), low=1, high=MAX_TASKS)
    node = integer("NODE_RANK", variables.get("NODE_RANK", "0"), low=0, high=nodes - 1)
    return [f"node-{index}" for index in range(nodes)], node


def _worker_count(role: TaskRole, options: LaunchOptions, devices: Devices) -> int:
    gpus = devices.visible if role.gpus is None else role.gpus
    return options.workers or gpus or 1


def _check_devices(role: TaskRole, options: LaunchOptions, devices: Devices) -> None:
    if role.gpus is None or role.gpus <= devices.visible or options.cpu:
        return
    promise = (
        f"{pai_names.RESOURCE.format(role=role.name)} gives this task {role.gpus} GPUs, but PyTorch"
    )
    if not devices.supported:
        raise ConfigurationError(
            f"{promise} is built without GPU support; use another image or gpu: 0"
        )
    raise DeviceError(
        f"{promise} sees {devices.visible}; driver, device plugin or node are at fault"
    )


def _backend(
    roles: Sequence[TaskRole], workers: Sequence[int], options: LaunchOptions, devices: Devices
) -> str:
    short = [
        (role.name, count)
        for role, count in zip(roles, workers, strict=True)
        if count > (devices.visible if role.gpus is None else role.gpus)
    ]
    if options.backend == "nccl" and (short or options.cpu):
        name, count = short[0] if short else (roles[0].name, workers[0])
        raise ConfigurationError(
            f"backend='nccl' needs a GPU for each worker, and {name!r} has not {count}; use gloo or auto"
        )
    return choose_backend(options.backend, not (short or options.cpu))


def _run_id(environment: PAIEnvironment | None, endpoint: Endpoint) -> str:
    if environment is not None:
        return environment.attempt_uid or f"{environment.job or 'job'}_{environment.attempt}"
    return f"{endpoint.master}:{endpoint.ports[0]}" if endpoint.ports else "local"

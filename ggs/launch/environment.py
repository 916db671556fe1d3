"""The variables that OpenPAI 1.8 and its successor LTP set in a task's container, read once.

    environment = PAIEnvironment.from_mapping(os.environ)   # None outside OpenPAI
    environment.role.name, environment.index, environment.address("worker", 0)

Nothing here changes the environment, and nothing imports torch.

OpenPAI writes a role's name in two ways: as in the job file in the variables that its REST server
sets (task count, resources), and lower-cased with everything but letters and digits dropped in those
that its runtime sets (addresses, ports). :attr:`TaskRole.name` and :attr:`TaskRole.key` are these two.
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ggs.errors import EnvironmentVariableError
from ggs.launch import pai_names
from ggs.launch.pai_names import role_key
from ggs.text import shorten

MAX_TASKS = 10_000
"""Instances of a role that FrameworkController accepts."""

_HTTP, _SSH = "http", "ssh"
_ROLE_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,254}")
_RENDEZVOUS_LABEL = re.compile(r"sync|rendezvous|rdzv|master|dist", re.IGNORECASE)


def is_on_openpai(variables: Mapping[str, str]) -> bool:
    """Whether both variables are there that only OpenPAI sets.

    Other platforms (PAI-DLC, Bitahub) use PAI_* names too.
    """
    return pai_names.ROLE_NAME in variables and pai_names.ROLE_LIST in variables


@dataclass(frozen=True)
class TaskRole:
    """One role of the job; the same on all of its tasks."""

    name: str
    """As in the job file: an entry of ``PAI_TASK_ROLE_LIST``."""
    tasks: int
    """``PAI_TASK_ROLE_TASK_COUNT_<name>``: instances."""
    gpus: int | None
    """First number of ``PAI_RESOURCE_<name>``, per task; None where the variable is not set."""
    cpus: int | None
    """Second number of ``PAI_RESOURCE_<name>``: cores per task."""
    memory_mb: int | None
    """Third number of ``PAI_RESOURCE_<name>``: MiB per task."""
    shm_mb: int | None
    """Fourth number of ``PAI_RESOURCE_<name>``: MiB of /dev/shm per task; 0 means the cluster's default."""

    @property
    def key(self) -> str:
        """The name inside ``PAI_HOST_IP_*`` and ``PAI_PORT_LIST_*``."""
        return role_key(self.name)


@dataclass(frozen=True)
class PAIEnvironment:
    """What a task knows about itself and its job. All of it is read and checked by from_mapping."""

    roles: tuple[TaskRole, ...]
    """``PAI_TASK_ROLE_LIST``, in its order, which is the same on all tasks."""
    role: TaskRole
    """``PAI_CURRENT_TASK_ROLE_NAME``: this task's."""
    index: int
    """``PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX``, else ``PAI_TASK_INDEX``, else ``FC_TASK_INDEX``."""
    job: str
    """``PAI_JOB_NAME`` (``user~name``), or an empty string."""
    attempt: int
    """``FC_FRAMEWORK_ATTEMPT_ID``: how often the whole job has been retried."""
    attempt_uid: str
    """``FC_FRAMEWORK_ATTEMPT_INSTANCE_UID``: the same on all tasks of one attempt, new for the next."""
    variables: Mapping[str, str]
    """The environment that all this was read from, for addresses and ports; not to be changed."""

    @classmethod
    def from_mapping(cls, variables: Mapping[str, str]) -> "PAIEnvironment | None":
        """Read an environment. None outside OpenPAI.

        Raises EnvironmentVariableError, with
        the variable's name and value, for what is missing or impossible.
        """
        if not is_on_openpai(variables):
            return None
        current, names = variables[pai_names.ROLE_NAME], variables[pai_names.ROLE_LIST]
        roles = tuple(_role(variables, name) for name in _role_names(names))
        role = next((role for role in roles if role.name == current), None)
        if role is None:
            raise EnvironmentVariableError(
                f"{pai_names.ROLE_NAME}={shown(current)} is not one of "
                f"{pai_names.ROLE_LIST}={shown(names)}"
            )
        return cls(
            roles=roles,
            role=role,
            index=_task_index(variables, role),
            job=variables.get(pai_names.JOB_NAME, ""),
            attempt=_optional_integer(variables, pai_names.JOB_ATTEMPT),
            attempt_uid=variables.get(pai_names.JOB_ATTEMPT_UID, ""),
            variables=MappingProxyType(dict(variables)),
        )

    def find_role(self, name: str) -> TaskRole:
        """The role of this name. Raises EnvironmentVariableError if the job has none."""
        for role in self.roles:
            if name in (role.name, role.key):
                return role
        known = ", ".join(role.name for role in self.roles)
        raise EnvironmentVariableError(
            f"the job has no role {shown(name)}; {pai_names.ROLE_LIST} has {known}"
        )

    def address(self, role: TaskRole, index: int) -> str:
        """``PAI_HOST_IP_<key>_<index>``: the address of the node that a task runs on.

        Raises EnvironmentVariableError if it is missing, or no IP address.
        """
        variable = pai_names.HOST_IP.format(key=role.key, index=index)
        text = self.variables.get(variable, "").strip()
        if text in ("", "None"):
            raise EnvironmentVariableError(
                f"{variable}={shown(text)}: OpenPAI did not say where task {role.name}-{index} runs; "
                "take extras.gangAllocation: false out of the job file"
            )
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            raise EnvironmentVariableError(
                f"{variable}={shown(text)} is not an IP address"
            ) from None

    def ports(self, role: TaskRole, index: int) -> dict[str, tuple[int, ...]]:
        """Port numbers of a task by label: ``PAI_PORT_LIST_<key>_<index>_<label>``.

        The older form ``PAI_<key>_<index>_<label>_PORT`` is read too. OpenPAI adds the labels ``http``
        and ``ssh`` to every task. Raises EnvironmentVariableError for a number that is no port.
        """
        labelled: dict[str, tuple[int, ...]] = {}
        for variable, label in self._port_variables(role.key, index):
            ports = _ports(variable, self.variables[variable])
            if labelled.setdefault(label, ports) != ports:
                raise EnvironmentVariableError(
                    f"{variable}={shown(self.variables[variable])} contradicts "
                    f"{pai_names.PORT_LIST.format(key=role.key, index=index, label=label)}"
                )
        return labelled

    def rendezvous_ports(self, role: TaskRole, index: int) -> tuple[int, ...]:
        """Ports of a task that workers may meet on, best first, the same order on every task.

        Labels whose name speaks of it (SynPort, SyncPort, distributed_sync_port, master ...), other
        declared labels, then the automatic ``http``; never ``ssh``. Raises EnvironmentVariableError
        if none is left.
        """
        labels = self.ports(role, index)
        order = sorted(
            (label for label in labels if label != _SSH),
            key=lambda label: (label == _HTTP, not _speaks_of_rendezvous(label), label),
        )
        ports = dict.fromkeys(port for label in order for port in labels[label])
        if not ports:
            raise EnvironmentVariableError(
                f"no PAI_PORT_LIST_{role.key}_{index}_<label>: the tasks have no port to meet on; give "
                f"role {role.name!r} one in the job file (resourcePerInstance: ports: {{SynPort: 2}})"
            )
        return tuple(ports)

    def _port_variables(self, key: str, index: int) -> Iterator[tuple[str, str]]:
        new = pai_names.PORT_LIST.format(key=key, index=index, label="")
        old, end = pai_names.OLD_PORT.format(key=key, index=index, label=" ").split(" ")
        for variable in self.variables:
            if variable.startswith(new) and len(variable) > len(new):
                yield variable, variable[len(new) :]
        for variable in self.variables:
            if variable.startswith(old) and variable.endswith(end):
                label = variable[len(old) : -len(end)]
                if label:
                    yield variable, label


def _speaks_of_rendezvous(label: str) -> bool:
    return "synport" in label.lower() or _RENDEZVOUS_LABEL.search(label) is not None


def _role_names(text: str) -> list[str]:
    names = text.split(",")
    seen: dict[str, str] = {}
    for name in names:
        key = role_key(name)
        if not _ROLE_NAME.fullmatch(name) or not key:
            raise EnvironmentVariableError(
                f"{pai_names.ROLE_LIST}={shown(text)}: {shown(name)} is no name of a task role"
            )
        if key in seen:
            raise EnvironmentVariableError(
                f"{pai_names.ROLE_LIST}={shown(text)}: {seen[key]!r} and {name!r} are one role to OpenPAI, "
                f"{key!r}; rename one of them in the job file"
            )
        seen[key] = name
    return names


def _role(variables: Mapping[str, str], name: str) -> TaskRole:
    variable = pai_names.TASK_COUNT.format(role=name)
    if variable not in variables:
        raise EnvironmentVariableError(
            f"{variable} is not set, but {pai_names.ROLE_LIST} names {name!r}"
        )
    tasks = integer(variable, variables[variable], low=1, high=MAX_TASKS)
    gpus, cpus, memory_mb, shm_mb = _resources(variables, pai_names.RESOURCE.format(role=name))
    return TaskRole(name, tasks, gpus, cpus, memory_mb, shm_mb)


def _resources(variables: Mapping[str, str], variable: str) -> list[int | None]:
    text = variables.get(variable)
    if text is None:
        return [None] * 4
    fields = text.split(",")
    if len(fields) != 4:
        raise EnvironmentVariableError(f"{variable}={shown(text)} is not gpu,cpu,memoryMB,shmMB")
    return [integer(variable, field, low=0, high=2**31 - 1, whole=text) for field in fields]


def _task_index(variables: Mapping[str, str], role: TaskRole) -> int:
    names = (pai_names.TASK_INDEX, "PAI_TASK_INDEX", "FC_TASK_INDEX")
    for name in names:
        if name in variables:
            index = integer(name, variables[name], low=0, high=MAX_TASKS)
            if index >= role.tasks:
                raise EnvironmentVariableError(
                    f"{name}={index} is out of range: role {role.name!r} has tasks 0 to "
                    f"{role.tasks - 1} ({pai_names.TASK_COUNT.format(role=role.name)}={role.tasks})"
                )
            return index
    raise EnvironmentVariableError(f"no task index: none of {', '.join(names)} is set")


def _ports(variable: str, text: str) -> tuple[int, ...]:
    return tuple(
        integer(variable, field, low=1, high=65535, whole=text) for field in text.split(",")
    )


def _optional_integer(variables: Mapping[str, str], variable: str) -> int:
    return (
        integer(variable, variables[variable], low=0, high=2**31 - 1)
        if variable in variables
        else 0
    )


def integer(variable: str, text: str, *, low: int, high: int, whole: str | None = None) -> int:
    """``text`` as a whole number from ``low`` to ``high``. Raises EnvironmentVariableError otherwise.

    ``whole``: the variable's full value for the message, where ``text`` is a part of it.
    """
    value_text = text if whole is None else whole
    stripped = text.strip()
    # int() would also take 1_000, Arabic digits and, slowly, a million digits.
    if not re.fullmatch(r"-?[0-9]{1,10}", stripped):
        raise EnvironmentVariableError(f"{variable}={shown(value_text)} is not a whole number")
    value = int(stripped)
    if not low <= value <= high:
        raise EnvironmentVariableError(
            f"{variable}={shown(value_text)} is not between {low} and {high}"
        )
    return value


def shown(text: str) -> str:
    """A value as it stands in a message: quoted, on one line, and not longer than a line should be."""
    return repr(shorten(text, 80))

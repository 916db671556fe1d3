"""The environment that OpenPAI gives a task, complete, as one pure function.

Three parties write it on a cluster: FrameworkController (``FC_*``), the REST server (``PAI_*`` about
the job) and the runtime (``PAI_*`` about addresses and ports). The first and the last know a role by
its lower-cased alphanumeric name, the second by the name in the file.
"""

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ggs.launch.pai_names import role_key
from ggs.pai.job.model import Job, RoleSpec

PORT_RANGE = (15000, 40000)
_AUTOMATIC_LABELS = ("ssh", "http")


@dataclass(frozen=True)
class TaskId:
    """One task of a job: the name of its role in the file, and its index in the role."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role}:{self.index}"


@dataclass(frozen=True)
class Pod:
    """Where one attempt of a task runs."""

    address: str
    uid: str


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job: everything that a retry renews."""

    job_uid: str
    """New for each submission, the same for all attempts."""
    number: int
    """0 for the first attempt."""
    pods: Mapping[TaskId, Pod]

    def uid(self, *parts: object) -> str:
        """The identifier of something that lives as long as this attempt."""
        return str(uuid.uuid5(uuid.UUID(self.job_uid), "/".join(map(str, (self.number, *parts)))))


def tasks_of(job: Job) -> list[TaskId]:
    """All tasks, roles in the file's order."""
    return [TaskId(name, i) for name, role in job.task_roles.items() for i in range(role.instances)]


def port_labels(role: RoleSpec) -> dict[str, int]:
    """How many ports each label has; ``ssh`` and ``http`` exist, with one port, unless declared."""
    labels = dict(role.resource.ports or {})
    for label in _AUTOMATIC_LABELS:
        labels.setdefault(label, 1)
    return labels


def task_ports(role: RoleSpec, pod_uid: str) -> dict[str, list[int]]:
    """The port numbers of one task by label, hashed from its pod's identifier as the runtime does.

    Nobody reserves them: two may be equal, and another program may use one.
    """
    return {
        label: [_hashed_port(pod_uid, label, i) for i in range(count)]
        for label, count in port_labels(role).items()
    }


def _hashed_port(pod_uid: str, label: str, index: int) -> int:
    digest = hashlib.md5(f"[{pod_uid}][{label}][{index}]".encode()).hexdigest()
    parts = (int(part, 16) for part in (digest[:12], digest[12:24], digest[24:]))
    return PORT_RANGE[0] + sum(parts) % (PORT_RANGE[1] - PORT_RANGE[0])


def task_environment(
    job: Job, task: TaskId, attempt: Attempt, *, user: str, work_dir: str, runtime_dir: str
) -> dict[str, str]:
    """Every variable that OpenPAI sets in the user container of ``task``.

    ``work_dir`` is the image's WORKDIR, ``runtime_dir`` what ``/usr/local/pai`` is on a cluster.
    """
    framework_name = f"{user}~{job.name}"
    environment = {
        **_controller_variables(job, task, attempt, framework_name),
        **_server_variables(job, task, framework_name, user),
        **dict(_runtime_variables(job, task, attempt.pods)),
        "PAI_WORK_DIR": work_dir,
        "RUNTIME_LOG_PIPE": f"{runtime_dir}/runtime.d/runtime_log_pipe",
    }
    if job.task_roles[task.role].resource.gpu == 0:
        environment["NVIDIA_VISIBLE_DEVICES"] = "none"
    return environment


def _controller_variables(
    job: Job, task: TaskId, attempt: Attempt, framework_name: str
) -> dict[str, str]:
    """Part A: FrameworkController's fifteen, in which the job is an MD5 sum."""
    name = hashlib.md5(framework_name.encode()).hexdigest()
    role = role_key(task.role)
    config_map_uid = attempt.uid("config map")
    pod_uid = attempt.pods[task].uid
    return {
        "FC_FRAMEWORK_NAMESPACE": "default",
        "FC_FRAMEWORK_NAME": name,
        "FC_TASKROLE_NAME": role,
        "FC_TASK_INDEX": str(task.index),
        "FC_CONFIGMAP_NAME": f"{name}-attempt",
        "FC_POD_NAME": f"{name}-{role}-{task.index}",
        "FC_FRAMEWORK_UID": attempt.job_uid,
        "FC_FRAMEWORK_ATTEMPT_ID": str(attempt.number),
        "FC_FRAMEWORK_ATTEMPT_INSTANCE_UID": f"{attempt.number}_{config_map_uid}",
        "FC_CONFIGMAP_UID": config_map_uid,
        "FC_TASKROLE_UID": attempt.uid("role", role),
        "FC_TASK_UID": attempt.uid("task", role, task.index),
        "FC_TASK_ATTEMPT_ID": "0",
        "FC_POD_UID": pod_uid,
        "FC_TASK_ATTEMPT_INSTANCE_UID": f"0_{pod_uid}",
    }


def _server_variables(job: Job, task: TaskId, framework_name: str, user: str) -> dict[str, str]:
    """Part B: the REST server's, with the names of roles as the file writes them."""
    role_count = str(len(job.task_roles))
    role_list = ",".join(job.task_roles)
    task_count = str(len(tasks_of(job)))
    environment = {
        "PAI_FRAMEWORK_NAME": framework_name,
        "PAI_JOB_NAME": framework_name,
        "PAI_USER_NAME": user,
        "PAI_USERNAME": user,
        "PAI_DEFAULT_FS_URI": "",
        "PAI_VIRTUAL_CLUSTER": str(job.defaults.virtual_cluster or "default"),
        "PAI_TASK_ROLE_COUNT": role_count,
        "PAI_TASK_ROLES_NUM": role_count,
        "PAI_JOB_TASK_ROLE_COUNT": role_count,
        "PAI_TASK_ROLE_LIST": role_list,
        "PAI_JOB_TASK_ROLE_LIST": role_list,
        "PAI_TASKS_NUM": task_count,
        "PAI_JOB_TASK_COUNT": task_count,
        "PAI_CURRENT_TASK_ROLE_NAME": task.role,
        "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": str(task.index),
        "PAI_TASK_INDEX": str(task.index),
    }
    for name, role in job.task_roles.items():
        asked = role.resource
        shm_mb = role.extra_container_options.shm_mb or 0
        environment |= {
            f"PAI_TASK_ROLE_TASK_COUNT_{name}": str(role.instances),
            f"PAI_RESOURCE_{name}": f"{asked.gpu},{asked.cpu},{asked.memory_mb},{shm_mb}",
            f"PAI_MIN_FAILED_TASK_COUNT_{name}": str(role.min_failed),
            f"PAI_MIN_SUCCEEDED_TASK_COUNT_{name}": str(role.min_succeeded),
        }
    return environment


def _runtime_variables(
    job: Job, task: TaskId, pods: Mapping[TaskId, Pod]
) -> Iterator[tuple[str, str]]:
    """Part C: what the runtime exports in the user container, about every task and the current one."""
    for name, role in job.task_roles.items():
        short = role_key(name)
        hosts = []
        for index in range(role.instances):
            pod = pods[TaskId(name, index)]
            ports = task_ports(role, pod.uid)
            hosts.append(f"{pod.address}:{ports['http'][0]}")
            yield f"PAI_HOST_IP_{short}_{index}", pod.address
            for label, numbers in ports.items():
                yield f"PAI_PORT_LIST_{short}_{index}_{label}", _join(numbers)
                yield f"PAI_{short}_{index}_{label}_PORT", _join(numbers)
            if task == TaskId(name, index):
                yield from _current_task_variables(pod.address, ports)
        yield f"PAI_TASK_ROLE_{short}_HOST_LIST", ",".join(hosts)
    instances = (f"{role_key(other.role)}:{other.index}" for other in tasks_of(job))
    yield "PAI_TASK_ROLE_INSTANCES", ",".join(instances)


def _current_task_variables(
    address: str, ports: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, str]]:
    yield "PAI_CURRENT_CONTAINER_IP", address
    yield "PAI_CONTAINER_HOST_IP", address
    yield "PAI_CURRENT_CONTAINER_PORT", str(ports["http"][0])
    yield "PAI_CONTAINER_HOST_PORT", str(ports["http"][0])
    yield "PAI_CONTAINER_SSH_PORT", str(ports["ssh"][0])
    for label, numbers in ports.items():
        yield f"PAI_CONTAINER_HOST_{label}_PORT_LIST", _join(numbers)
    listed = (f"{label}:{_join(numbers)};" for label, numbers in ports.items())
    yield "PAI_CONTAINER_HOST_PORT_LIST", "".join(listed)


def _join(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))

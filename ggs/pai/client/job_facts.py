"""What more a cluster knows about a job: its tasks in detail, its attempts, events and tags."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ggs.errors import ConfigurationError, ServerRefusedError, UnreachableError
from ggs.pai.client.responses import clean
from ggs.pai.client.rest import Client
from ggs.pai.client.status import JobStatus

SSH_PLUGIN = "ssh"


@dataclass(frozen=True)
class TaskFacts:
    """One task, as ``pai job show`` prints it."""

    task: str
    """``worker:0``."""
    state: str
    address: str | None
    node: str | None
    ports: Mapping[str, list[int]]
    gpus: int | None
    """How many the job file asks for; None where the file does not say."""
    gpu_indices: list[int] | None
    """Which of the node's, where OpenPAI says it."""
    retries: int
    exit_code: int | None
    exit_reason: str
    ssh: str | None


def tasks(job: JobStatus, config: Mapping[str, Any]) -> list[TaskFacts]:
    """All tasks of a job; ``config`` is its stored file, from which the number of GPUs comes."""
    gpus = _gpus_by_role(config)
    return [
        TaskFacts(
            task=f"{role}:{task.task_index}",
            state=clean(task.task_state, 20),
            address=clean(task.container_ip, 100) if task.container_ip else None,
            node=clean(task.container_node_name, 100) if task.container_node_name else None,
            ports=task.ports,
            gpus=gpus.get(role),
            gpu_indices=task.gpu_indices,
            retries=task.retries or 0,
            exit_code=task.container_exit_code,
            exit_reason=task.reason() if task.container_exit_code is not None else "",
            ssh=task.ssh,
        )
        for role, task in job.tasks
    ]


def has_ssh(config: Mapping[str, Any]) -> bool:
    """Whether the job file asks for OpenPAI's ssh plugin, without which no task listens."""
    extras = config.get("extras")
    plugins = extras.get("com.microsoft.pai.runtimeplugin") if isinstance(extras, dict) else None
    return isinstance(plugins, list) and any(
        isinstance(item, dict) and item.get("plugin") == SSH_PLUGIN for item in plugins
    )


def stored_file(client: Client, name: str, user: str | None) -> dict[str, Any]:
    """The job's stored file; {} where OpenPAI has the job but has not kept its file."""
    try:
        return client.config(name, user)
    except ServerRefusedError as error:
        if error.code != "NoJobConfigError":
            raise
        return {}


def attempts(client: Client, name: str, user: str | None) -> list[dict[str, Any]]:
    """All attempts that OpenPAI has kept, oldest first."""
    path = client.job_path(name, user) + "/job-attempts"
    try:
        value = client.get(path, f"job {name!r}")
    except ServerRefusedError as error:
        if error.status == 404:
            client.job(name, user)  # says that there is no job, where that is the reason
        raise
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UnreachableError(f"OpenPAI's answer about the attempts of job {name!r} is no list")
    return sorted(value, key=lambda item: _number(item.get("attemptIndex")))


def events(
    client: Client, name: str, user: str | None, kind: str | None = None
) -> list[dict[str, Any]]:
    """Kubernetes' events of a job, oldest first; ``kind`` is Normal or Warning, None both."""
    path = client.job_path(name, user) + "/events"
    value = client.get(path, f"job {name!r}", {"type": kind} if kind else None)
    found = value.get("data") if isinstance(value, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise UnreachableError(f"OpenPAI's answer about the events of job {name!r} is no list")
    return found[::-1]


def tag(client: Client, name: str, user: str | None, text: str) -> None:
    """Add a tag to a job; harmless where it has it."""
    client.change("PUT", _tag_path(client, name, user, text), f"job {name!r}", {"value": text})


def untag(client: Client, name: str, user: str | None, text: str) -> None:
    """Remove a tag from a job. ServerRefusedError with code ``NoTagError`` where it has it not."""
    path = _tag_path(client, name, user, text)
    client.change("DELETE", path, f"tag {text!r} of job {name!r}", {"value": text})


def _tag_path(client: Client, name: str, user: str | None, text: str) -> str:
    if not text or "," in text:
        raise ConfigurationError(f"{text!r} is not a tag: give a text without a comma")
    return client.job_path(name, user) + "/tag"


def _gpus_by_role(config: Mapping[str, Any]) -> dict[str, int]:
    """GPUs of a task by the role's name as OpenPAI's status has it: letters and digits, lower-case."""
    roles = config.get("taskRoles")
    found = {}
    for name, role in roles.items() if isinstance(roles, dict) else ():
        resource = role.get("resourcePerInstance") if isinstance(role, dict) else None
        gpus = resource.get("gpu") if isinstance(resource, dict) else None
        if isinstance(gpus, int):
            found[re.sub("[^a-z0-9]", "", str(name).lower())] = gpus
    return found


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) else -1

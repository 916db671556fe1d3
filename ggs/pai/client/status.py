"""The status of a job and its tasks, as OpenPAI's REST server reports it."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from ggs.errors import UnreachableError
from ggs.pai.client.responses import clean

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class TaskStatus(_Model):
    """One task of the attempt asked for; ``container_log`` is where its logs are listed."""

    task_index: int = Field(ge=0)
    task_state: str
    container_ip: str | None = None
    container_node_name: str | None = None
    container_log: str | None = None
    container_exit_code: int | None = None
    retries: int | None = None


class _Role(_Model):
    task_statuses: list[TaskStatus] = []


class _ExitSpec(_Model):
    phrase: str | None = None
    reason: Any = None
    solution: Any = None


class _StatusFields(_Model):
    username: str | None = None
    state: str
    retries: int | None = None
    virtual_cluster: str | None = None
    submission_time: float | None = None  # milliseconds since 1970, as the next two
    launched_time: float | None = None
    completed_time: float | None = None
    app_exit_code: int | None = None
    app_exit_spec: _ExitSpec | None = None
    app_exit_diagnostics: str | None = None
    app_exit_trigger_task_role_name: str | None = None
    app_exit_trigger_task_index: int | None = None


class JobStatus(_Model):
    """A job's status; task roles have OpenPAI's own (lower-cased) names."""

    name: str = ""
    job_status: _StatusFields
    task_roles: dict[str, _Role] = {}

    @property
    def state(self) -> str:
        """WAITING, RUNNING, STOPPING, SUCCEEDED, FAILED or STOPPED."""
        return self.job_status.state

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.state in ENDED

    @property
    def tasks(self) -> list[tuple[str, TaskStatus]]:
        """Every task with its role's name."""
        return [
            (role, task) for role, item in self.task_roles.items() for task in item.task_statuses
        ]

    def summary(self) -> str:
        """State, attempt and what the tasks do: ``RUNNING, attempt 1, 2 tasks running``."""
        parts = [self.state]
        if self.job_status.retries:
            parts.append(f"after {self.job_status.retries} retries")
        counts = Counter(task.task_state.lower() for _, task in self.tasks)
        for state, count in sorted(counts.items()):
            parts.append(f"{count} {'task' if count == 1 else 'tasks'} {state}")
        return ", ".join(parts)

    def reason(self) -> str:
        """Why the job ended as it did, on one line; "" where OpenPAI says nothing."""
        status = self.job_status
        parts = []
        if status.app_exit_trigger_task_role_name:
            index = status.app_exit_trigger_task_index
            parts.append(f"task {status.app_exit_trigger_task_role_name}:{index} decided it")
        if status.app_exit_code:
            parts.append(f"exit code {status.app_exit_code}")
        spec = status.app_exit_spec
        for text in (spec.phrase, spec.reason, spec.solution) if spec else ():
            if isinstance(text, str) and text.strip():
                parts.append(clean(text, 200))
            elif isinstance(text, list):
                parts += [clean(item, 200) for item in text[:3] if isinstance(item, str)]
        if len(parts) < 2 and status.app_exit_diagnostics:
            parts.append(clean(status.app_exit_diagnostics, 300))
        return "; ".join(parts)


def read(answer: Mapping[str, Any]) -> JobStatus:
    """The job in a REST answer; UnreachableError names what is not as OpenPAI sends it."""
    try:
        return JobStatus.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = clean(".".join(str(step) for step in first["loc"]), 100)
        raise UnreachableError(
            f"OpenPAI's answer about the job is not understood: {where}: {clean(first['msg'], 100)}"
        ) from None

"""The status of a job and its tasks, as OpenPAI's REST server reports it."""

import re
import shlex
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


class ExitSpec(_Model):
    """OpenPAI's own words about an exit code."""

    phrase: str | None = None
    reason: Any = None
    solution: Any = None

    def sentences(self) -> list[str]:
        """Phrase, reasons and what to do, each cleaned."""
        found = []
        for text in (self.phrase, self.reason, self.solution):
            if isinstance(text, str) and text.strip():
                found.append(clean(text, 200))
            elif isinstance(text, list):
                found += [clean(item, 200) for item in text[:3] if isinstance(item, str)]
        return found


class TaskStatus(_Model):
    """One task of the attempt asked for; ``container_log`` is where its logs are listed."""

    task_index: int = Field(ge=0)
    task_state: str
    container_ip: str | None = None
    container_node_name: str | None = None
    container_log: str | None = None
    container_ports: Any = None
    container_gpus: Any = None
    container_exit_code: int | None = None
    container_exit_spec: ExitSpec | None = None
    container_exit_diagnostics: str | None = None
    retries: int | None = None

    @property
    def ports(self) -> dict[str, list[int]]:
        """Port numbers by label: OpenPAI writes one as a number, several as ``"1,2"``."""
        found = self.container_ports if isinstance(self.container_ports, dict) else {}
        return {
            clean(label, 100): [
                int(number)
                for number in str(numbers)[:1000].split(",")
                if re.fullmatch(r"[0-9]{1,5}", number)
            ]
            for label, numbers in found.items()
        }

    @property
    def gpu_indices(self) -> list[int] | None:
        """The node's GPUs that the task has, from OpenPAI's bit mask; None where it sends none."""
        mask = self.container_gpus
        if not isinstance(mask, int) or not 0 < mask < 1 << 64:
            return None
        return [index for index in range(64) if mask >> index & 1]

    @property
    def ssh(self) -> str | None:
        """The command that opens a shell in the task; None where it has no address or no ssh port."""
        numbers = self.ports.get("ssh")
        if not numbers or not self.container_ip:
            return None
        return f"ssh -p {numbers[0]} root@{shlex.quote(clean(self.container_ip, 100))}"

    def reason(self) -> str:
        """What OpenPAI says about the exit code, on one line; "" where it says nothing."""
        parts = self.container_exit_spec.sentences() if self.container_exit_spec else []
        if not parts and self.container_exit_diagnostics:
            parts = [clean(self.container_exit_diagnostics, 300)]
        return "; ".join(parts)


class _Role(_Model):
    task_statuses: list[TaskStatus] = []


class _StatusFields(_Model):
    username: str | None = None
    state: str
    retries: int | None = None
    attempt_id: int | None = None
    virtual_cluster: str | None = None
    submission_time: float | None = None  # milliseconds since 1970, as the next two
    launched_time: float | None = None
    completed_time: float | None = None
    app_exit_code: int | None = None
    app_exit_spec: ExitSpec | None = None
    app_exit_diagnostics: str | None = None
    app_exit_trigger_task_role_name: str | None = None
    app_exit_trigger_task_index: int | None = None


class JobStatus(_Model):
    """A job's status; task roles have OpenPAI's own (lower-cased) names."""

    name: str = ""
    tags: list[Any] = []
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
        parts += status.app_exit_spec.sentences() if status.app_exit_spec else []
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

"""What a local run needs from the thing that runs its tasks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ggs.errors import GGSError
from ggs.pai.job.model import DockerImage, RoleSpec
from ggs.pai.local.task_environment import TaskId


class CannotRun(GGSError):
    """The job cannot get to its end here, and on OpenPAI neither."""


@dataclass(frozen=True)
class Launch:
    """Everything about one attempt of one task that is known before it has an address."""

    task: TaskId
    role: RoleSpec
    image: DockerImage
    attempt: int
    pod_uid: str
    files: Mapping[str, str]
    """Text by path below the runtime's folder."""
    mounts: Mapping[str, Path]
    """Folder of this machine by absolute path in the task."""
    gpus: Sequence[int]
    """Indices of the GPUs that are the task's own."""
    token: str
    """Marks the runtime's own lines in the output."""


@dataclass(frozen=True)
class Output:
    """A line that a task has printed."""

    task: TaskId
    line: str


@dataclass(frozen=True)
class Exited:
    """A task's first process has ended; all its output came before."""

    task: TaskId
    code: int
    out_of_memory: bool


Report = Callable[[Output | Exited], None]
"""Takes events, from any thread."""


class Engine(Protocol):
    """Runs tasks, each at an address of its own."""

    def prepare(self, images: Sequence[DockerImage]) -> None:
        """Get what tasks need, which may take minutes; nothing is left behind by an interruption.

        Raises ``CannotRun`` where OpenPAI could not get it either.
        """

    def open(self) -> None:
        """Make what all tasks share; ``close`` removes it, even after a failure half-way."""

    def start(self, launch: Launch) -> str:
        """Start a task up to its barrier, and return its address."""

    def work_dir(self, launch: Launch) -> str:
        """Where the task's commands begin."""

    def runtime_dir(self, launch: Launch) -> str:
        """What ``/usr/local/pai`` is to the task."""

    def release(self, launch: Launch, environment: Mapping[str, str]) -> None:
        """Let a task pass its barrier."""

    def kill(self, task: TaskId) -> None:
        """SIGKILL to a task's first process, which takes all others along. Harmless when ended."""

    def end_attempt(self) -> None:
        """Kill what still runs, wait for it, and remove it unless it is to be kept."""

    def close(self) -> None:
        """Remove whatever the engine has made on this machine, unless it is to be kept."""

    def how_to_remove(self) -> str:
        """What was kept, as the command that removes it."""

"""What a person sees of a local run: every task's state live, its output, and one table at the end."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ggs.pai.local.task_environment import TaskId

WAITING, RUNNING, SUCCEEDED, FAILED, KILLED = "WAITING", "RUNNING", "SUCCEEDED", "FAILED", "KILLED"

_STATE_STYLES = {WAITING: "dim", RUNNING: "cyan", SUCCEEDED: "green", FAILED: "red", KILLED: "dim"}
_TASK_STYLES = ("cyan", "magenta", "yellow", "green", "blue", "bright_red")


@dataclass
class TaskState:
    """What is known of one task."""

    state: str = WAITING
    address: str = ""
    attempts: int = 0
    code: str = ""
    """Exit code of the last attempt, and in brackets the one that OpenPAI shows."""
    conclusion: str = ""
    since: float = field(default_factory=time.monotonic)


def say(text: str) -> None:
    """A sentence of the local platform itself, where no display is open."""
    Console(highlight=False).print(Text(f"pai: {text}"), soft_wrap=True)


def complain(text: str) -> None:
    """Why the run does not go on, on stderr."""
    Console(highlight=False, stderr=True).print(Text(f"pai: {text}"), soft_wrap=True)


class Display:
    """Writes to a terminal with a live table, or plain lines to anything else."""

    def __init__(self, tasks: Sequence[TaskId]) -> None:
        self.tasks = {task: TaskState() for task in tasks}
        self._console = Console(highlight=False)
        if not self._console.is_terminal:  # nothing says how wide the reader's page is
            self._console.width = 120
        self._width = max(len(str(task)) for task in tasks)
        self._live = None
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._states, console=self._console, refresh_per_second=4
            )

    def __enter__(self) -> "Display":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def note(self, text: str) -> None:
        """A sentence of the local platform itself."""
        self._print(Text(f"pai: {text}", style="bold"))

    def output(self, task: TaskId, line: str) -> None:
        """A line that a task has printed; of a redrawn line, its last state."""
        style = _TASK_STYLES[list(self.tasks).index(task) % len(_TASK_STYLES)]
        text = Text(f"{task!s:<{self._width}} | ", style=style)
        text.append_text(Text.from_ansi(line.rstrip("\r").rpartition("\r")[2], style="default"))
        self._print(text)

    def change(self, task: TaskId, state: str) -> None:
        """A task's new state."""
        known = self.tasks[task]
        known.state, known.since = state, time.monotonic()
        if not self._live:
            self._print(Text(f"pai: {task} is {state}"))

    def summary(self, verdict: str) -> None:
        """The table that a run ends with, then ``verdict``."""
        table = Table(
            "task", "attempts", "exit code", "what OpenPAI concludes", title_justify="left"
        )
        for task, known in self.tasks.items():
            table.add_row(str(task), str(known.attempts), known.code, known.conclusion)
        self._console.print(table)
        self.note(verdict)

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)

    def _states(self) -> Table:
        table = Table("task", "state", "for", "address", "attempt", box=None)
        for task, known in self.tasks.items():
            table.add_row(
                str(task),
                Text(known.state, style=_STATE_STYLES[known.state]),
                f"{time.monotonic() - known.since:.0f} s",
                known.address,
                str(known.attempts),
            )
        return table

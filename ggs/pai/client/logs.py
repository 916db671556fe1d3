"""Logs of a job's tasks: listed, read in pieces, followed while the job runs."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ggs.errors import PAIError, ServerRefusedError
from ggs.pai.client.rest import Client
from ggs.pai.client.status import JobStatus, TaskStatus, read
from ggs.pai.client.wait import may_pass

TAIL_BYTES = 1 << 20
MAX_LINE = 1 << 16


@dataclass
class TaskLog:
    """One task's log of one kind (``all``, ``stdout``, ``stderr`` ...) and how far it has been read."""

    role: str
    task: TaskStatus
    kind: str
    offset: int = 0

    @property
    def label(self) -> str:
        """``worker:0``, as other messages call the task."""
        return f"{self.role}:{self.task.task_index}"

    def read(self, client: Client) -> Iterator[bytes]:
        """What is new since the last call; nothing while the task has no log yet."""
        address = self._address(client)
        if address is None:
            return
        with client.open_log(address, f"{self.offset}-" if self.offset else None) as log:
            if log.status == 416:
                # nothing new, or a new file after the old one was full
                size = log.headers.get("content-range", "").rpartition("/")[2]
                if size.isdigit() and int(size) < self.offset:
                    self.offset = 0
                return
            skip = self.offset if log.status == 200 else 0
            for part in log.parts:
                fresh = part[skip:]
                skip = max(0, skip - len(part))
                self.offset += len(fresh)
                if fresh:
                    yield fresh

    def tail(self, client: Client, lines: int) -> bytes:
        """The last ``lines`` lines, of at most 1 MiB."""
        address = self._address(client)
        if address is None or lines == 0:
            return b""
        with client.open_log(address, f"-{TAIL_BYTES}") as log:
            data = bytearray()
            if log.status != 416:
                for part in log.parts:
                    data += part
                    del data[:-TAIL_BYTES]
            total = log.headers.get("content-range", "").rpartition("/")[2]
        self.offset = int(total) if total.isdigit() else len(data)
        return b"".join(bytes(data).splitlines(keepends=True)[-lines:])

    def _address(self, client: Client) -> str | None:
        if not self.task.container_log:
            return None
        try:
            addresses = client.log_addresses(self.task.container_log)
        except ServerRefusedError as error:
            if error.code == "NoTaskLogError":
                return None
            raise
        if addresses and self.kind not in addresses:
            raise PAIError(f"{self.label} has no log {self.kind!r}; it has {sorted(addresses)}")
        return addresses.get(self.kind)


class Printer:
    """Writes logs as they come; of several tasks, each whole line with its task before it.

    With ``as_json`` each line is an object with ``task`` and ``line``, whose bytes that are no UTF-8
    are replaced.
    """

    def __init__(self, stream: BinaryIO, as_json: bool = False) -> None:
        self.shown = False
        self._stream = stream
        self._as_json = as_json
        self._rest: dict[str, bytes] = {}

    def show(self, log: TaskLog, part: bytes, logs: int) -> None:
        """Write ``part`` of one of several ``logs``, whose unfinished last lines wait for their end."""
        self.shown = self.shown or bool(part)
        if logs > 1 or self._as_json:
            lines = (self._rest.pop(log.label, b"") + part).splitlines(keepends=True)
            if lines and not lines[-1].endswith((b"\n", b"\r")) and len(lines[-1]) < MAX_LINE:
                self._rest[log.label] = lines.pop()
            part = b"".join(self._labelled(log.label, line) for line in lines)
        self._stream.write(part)
        self._stream.flush()

    def finish(self) -> None:
        """Write the lines that never ended."""
        for label, rest in self._rest.items():
            self._stream.write(self._labelled(label, rest + b"\n"))
        self._rest.clear()
        self._stream.flush()

    def _labelled(self, label: str, line: bytes) -> bytes:
        if not self._as_json:
            return f"{label} | ".encode() + line
        text = line.decode(errors="replace").rstrip("\r\n")
        return json.dumps({"task": label, "line": text}).encode() + b"\n"


@dataclass(frozen=True)
class Choice:
    """Which logs of a job: of all its tasks, or of those of a ``role`` and an ``index``."""

    role: str | None = None
    index: int | None = None
    kind: str = "all"

    def of(self, job: JobStatus) -> list[TaskLog]:
        """The chosen tasks' logs. PAIError where the job has tasks, but none of these."""
        chosen = [
            TaskLog(role, task, self.kind)
            for role, task in job.tasks
            if self.role in (None, role) and self.index in (None, task.task_index)
        ]
        if job.tasks and not chosen:
            known = ", ".join(f"{role}:{task.task_index}" for role, task in job.tasks)
            raise PAIError(f"job {job.name!r} has no such task; its tasks: {known}")
        return chosen


def select(
    client: Client, name: str, user: str | None, choice: Choice, attempt: int | None = None
) -> list[TaskLog]:
    """The chosen logs of a job as it is now; none while OpenPAI has not made its tasks."""
    return choice.of(read(client.job(name, user, attempt)))


@dataclass(frozen=True)
class FollowLimits:
    """How long to follow a job's logs, in seconds; ``outage`` is how long the server may be away."""

    total: float
    outage: float = 1800
    interval: float = 5


def follow(
    client: Client,
    name: str,
    user: str | None,
    choice: Choice,
    limits: FollowLimits,
    show: Callable[[TaskLog, bytes, int], None],
    say: Callable[[str], None],
    tail: int | None = None,
) -> bool:
    """Show what is new until the job has ended or time is up; returns whether it has ended.

    Right after a submission a job has no tasks: they are waited for. ``show`` is given a log, what is
    new in it, and the number of logs followed; ``say`` is told of waiting and outages. With ``tail``,
    each log begins with this many of its last lines.
    """
    start = answered = time.monotonic()
    logs: list[TaskLog] = []
    untouched: list[TaskLog] = []
    seen = waiting = False
    while True:
        try:
            job = read(client.job(name, user))
            seen = True
            if not logs:
                logs = choice.of(job)
                untouched = [] if tail is None else list(logs)
            _take_retries(logs, job)
            while untouched:
                show(untouched[-1], untouched[-1].tail(client, tail or 0), len(logs))
                untouched.pop()
            for log in logs:
                for part in log.read(client):
                    show(log, part, len(logs))
            answered = time.monotonic()
        except PAIError as error:
            if not seen or not may_pass(error, seen) or time.monotonic() - answered > limits.outage:
                raise
            say(f"no answer, asking again: {error}")
        else:
            if job.ended:
                return True
            if not logs and not waiting:
                waiting = True
                say(f"{job.state}, no tasks yet: waiting for them")
        if time.monotonic() - start > limits.total:
            return False
        time.sleep(limits.interval)


def _take_retries(logs: list[TaskLog], job: JobStatus) -> None:
    """Go on with the log of a task's new attempt, from its start."""
    now = {(role, task.task_index): task for role, task in job.tasks}
    for log in logs:
        task = now.get((log.role, log.task.task_index))
        if task is not None and task.container_log != log.task.container_log:
            log.task, log.offset = task, 0

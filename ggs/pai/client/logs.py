"""Logs of a job's tasks: listed, read in pieces, followed while the job runs."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from ggs.errors import PAIError, ServerRefusedError, UnreachableError
from ggs.pai.client.rest import Client
from ggs.pai.client.status import ENDED, TaskStatus, read

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
            raise UnreachableError(
                f"{self.label} has no log {self.kind!r}; it has {sorted(addresses)}"
            )
        return addresses.get(self.kind)


class Printer:
    """Writes logs as they come; with ``labels``, each whole line with its task before it."""

    def __init__(self, stream: BinaryIO, labels: bool) -> None:
        self.shown = False
        self._stream = stream
        self._labels = labels
        self._rest: dict[str, bytes] = {}

    def show(self, log: TaskLog, part: bytes) -> None:
        """Write ``part``; with labels, an unfinished last line waits for its end."""
        self.shown = self.shown or bool(part)
        if self._labels:
            lines = (self._rest.pop(log.label, b"") + part).splitlines(keepends=True)
            if lines and not lines[-1].endswith((b"\n", b"\r")) and len(lines[-1]) < MAX_LINE:
                self._rest[log.label] = lines.pop()
            part = b"".join(f"{log.label} | ".encode() + line for line in lines)
        self._stream.write(part)
        self._stream.flush()

    def finish(self) -> None:
        """Write the lines that never ended."""
        for label, rest in self._rest.items():
            self._stream.write(f"{label} | ".encode() + rest + b"\n")
        self._rest.clear()
        self._stream.flush()


def select(
    client: Client,
    name: str,
    user: str | None,
    role: str | None,
    index: int | None,
    kind: str,
    attempt: int | None = None,
) -> list[TaskLog]:
    """The logs of a job's tasks, all of them or those of ``role`` and ``index``."""
    job = read(client.job(name, user, attempt))
    tasks = [
        (task_role, task)
        for task_role, task in job.tasks
        if role in (None, task_role) and index in (None, task.task_index)
    ]
    if not tasks:
        known = ", ".join(f"{other}:{task.task_index}" for other, task in job.tasks) or "none yet"
        raise PAIError(f"job {name!r} has no such task; its tasks: {known}")
    return [TaskLog(task_role, task, kind) for task_role, task in tasks]


def follow(
    client: Client,
    name: str,
    user: str | None,
    logs: list[TaskLog],
    show: Callable[[TaskLog, bytes], None],
    seconds: float,
    interval: float = 5,
) -> None:
    """Show what is new until the job has ended, a task is replaced by a retry, or time is up."""
    end = time.monotonic() + seconds
    while True:
        job = read(client.job(name, user))
        states = {(role, task.task_index): task for role, task in job.tasks}
        for log in logs:
            task = states.get((log.role, log.task.task_index))
            if task is not None and task.container_log != log.task.container_log:
                log.task, log.offset = task, 0  # a new attempt has a log of its own
            for part in log.read(client):
                show(log, part)
        if job.state in ENDED or time.monotonic() > end:
            return
        time.sleep(interval)

"""What went wrong where: one failure, as it travels from a worker to its launcher and to the others."""

import json
import os
import signal
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import dropwhile
from pathlib import Path
from types import TracebackType
from typing import Any

from ggs.atomic_files import replacing
from ggs.errors import GGSError
from ggs.launch import exit_codes
from ggs.text import shorten

MAX_TEXT = 32 * 1024
"""Characters of a text that are kept: of a longer one its begin and its end."""
MAX_GIST = 500
"""Characters of the one line after a traceback."""

_HINTS = {
    "SIGKILL": "; out of memory, or by hand",
    "SIGBUS": "; often a full /dev/shm: raise extraContainerOptions.shmMB",
}


@dataclass(frozen=True)
class Failure:
    """One end that was not a success."""

    where: str
    """Such as ``rank 3 on task worker-1``."""
    text: str
    """One line, or a traceback."""
    exit_code: int
    """What the launcher should end with if this is the root cause."""
    time: float
    """Seconds since 1970, on the clock of the machine where it happened."""
    consequence: bool = False
    """Whether it looks like the effect of another failure: a lost connection in a collective."""

    def __str__(self) -> str:
        """The text, after a traceback its last line again: the log's last line says what failed where."""
        if "\n" not in self.text:
            return f"ggs: {self.where}: {self.text}"
        return f"ggs: {self.where}:\n{self.text}\nggs: {self.where}: {self._gist()}"

    def _gist(self) -> str:
        """What a traceback ends with, the exception and its message, in one line."""
        end = self.text.rpartition("Traceback (most recent call last):\n")[2]
        message = dropwhile(lambda line: line.startswith(" "), end.splitlines())
        return shorten(" ".join(" ".join(message).split()), MAX_GIST)

    def to_message(self) -> dict[str, Any]:
        """The failure as JSON values."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: Any) -> "Failure":
        """Read what :meth:`to_message` wrote. Raises ValueError for anything else."""
        if not isinstance(message, Mapping):
            raise ValueError("a failure is not an object")  # noqa: TRY004  callers expect ValueError only
        where, text = message.get("where"), message.get("text")
        code, time = message.get("exit_code"), message.get("time")
        consequence = message.get("consequence")
        if not (
            isinstance(where, str)
            and isinstance(text, str)
            and isinstance(code, int)
            and isinstance(time, (int, float))
            and isinstance(consequence, bool)
            and 0 < code < 256
        ):
            raise ValueError("a failure lacks a field, or has one of another type")
        return cls(where[:1000], text[-MAX_TEXT:], code, time, consequence)


def root_cause(failures: Iterable[Failure]) -> Failure:
    """The failure that explains the others: one that no retry cures, else the first that is no echo."""
    return min(
        failures,
        key=lambda failure: (
            not exit_codes.is_never_retried(failure.exit_code),
            failure.consequence,
            failure.time,
        ),
    )


def of_exception(error: BaseException, where: str, time: float) -> Failure:
    """A failure from an exception: one line for a GGSError, else a traceback without our own frames."""
    if isinstance(error, GGSError):
        text = str(error)
    else:
        frames = error.__traceback__
        while frames is not None and frames.tb_next is not None and _is_launcher_frame(frames):
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 2 - 3]} ... {text[2 - MAX_TEXT // 2 :]}"
    return Failure(where, text, exit_codes.of_error(error), time, _is_consequence(error))


def of_signal(number: int, where: str, time: float) -> Failure:
    """A failure from a worker's death by a signal."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    text = f"killed by {name}{_HINTS.get(name, '')}"
    return Failure(where, text, exit_codes.of_worker(-number), time)


def write(failure: Failure, path: Path) -> None:
    """Put a failure where torch's agent looks for it. Whole or not at all: a kill may come any time."""
    text = json.dumps(
        {"message": failure.text, "timestamp": int(failure.time), **failure.to_message()}
    )
    with replacing(path) as partial:
        partial.write_text(text)


def _is_launcher_frame(frames: TracebackType) -> bool:
    path = frames.tb_frame.f_code.co_filename
    return os.path.dirname(path) == os.path.dirname(__file__) or "runpy" in path


def _is_consequence(error: BaseException) -> bool:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"DistError", "ConnectionError"}) or (
        isinstance(error, RuntimeError) and "onnection" in str(error)
    )

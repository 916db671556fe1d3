"""Files of results, one JSON object a line, that studies append to and may be killed at."""

import json
import os
from pathlib import Path
from typing import Any


class ResultsError(ValueError):
    """A file is none of results."""


def load(path: Path) -> list[dict[str, Any]]:
    """The rows of ``path``; none where there is no such file. A half line at its end is passed over.

    Raises OSError, and ResultsError for what no study has written.
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    lines = content[: content.rfind(b"\n") + 1].decode(errors="replace").splitlines()
    return [parse(line, f"line {number} of {path}") for number, line in enumerate(lines, 1)]


def parse(line: str, where: str) -> dict[str, Any]:
    """The row in a line. Raises ResultsError, which says ``where``."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ResultsError(f"{where} is no JSON ({error})") from None
    if not isinstance(row, dict):
        raise ResultsError(f"{where} is no result but {line[:40]}")
    return row


def cut_off_half_line(path: Path) -> None:
    """What a killed study left of its last line, of a file that ``load`` has read."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)

"""Files of results, one JSON object a line, that studies append to and may be killed at."""

import json
import os
from pathlib import Path
from typing import Any


class ResultsError(ValueError):
    """A file is none of results."""


def load(path: Path) -> list[dict[str, Any]]:
    """The rows of ``path``; none where there is no such file. The half line of a killed study is cut off.

    Raises OSError, and ResultsError for what no study has written.
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if content[whole:]:
        os.truncate(path, whole)
    rows = []
    for number, line in enumerate(content[:whole].splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ResultsError(f"line {number} of {path} is no JSON ({error})") from None
        if not isinstance(row, dict):
            raise ResultsError(f"line {number} of {path} is no result but {line[:40].decode()}")
        rows.append(row)
    return rows

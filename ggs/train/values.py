"""Values that a type alone does not rule out, but no file system or configuration file can hold."""

import math
import os
from pathlib import Path
from types import NoneType
from typing import Any

LONGEST_NAME, LONGEST_PATH = 255, 4095
"""Bytes that Linux allows in one part of a path and in all of it."""


def path(value: Any) -> Any:
    """``value``, from one's home where it begins with ``~``. Raises ValueError for a text or path that
    names no file anywhere."""
    if not isinstance(value, str | Path):
        return value
    text = str(value)
    if not text.strip():
        raise ValueError("is empty; give a path, '.' for the working directory")
    if "\0" in text:
        raise ValueError(f"{text[:40]!r} has a NUL character in it; give a path")
    try:
        text.encode()
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        raise ValueError(f"{text[:40]!r} is not UTF-8; give another path") from None
    if len(encoded) > LONGEST_PATH or max(map(len, encoded.split(b"/"))) > LONGEST_NAME:
        raise ValueError(
            f"{text[:40]}... is too long ({len(encoded):,} bytes); a name has at most {LONGEST_NAME}, "
            f"a path {LONGEST_PATH:,}"
        )
    first = Path(text).parts[:1]
    if not first or not first[0].startswith("~"):
        return value
    if not text.startswith("~"):  # the same setting, written down and read again, would be at home
        raise ValueError(
            f"{text[:40]!r} begins with a folder named {first[0]!r}; give its absolute path"
        )
    try:
        return type(value)(Path(text).expanduser())
    except RuntimeError:
        raise ValueError(f"{text[:40]!r} has no home directory to stand for; give a path") from None


def require_plain(value: Any) -> None:
    """Raise ValueError for what JSON cannot hold: dates, sets, bytes, infinity, keys that are no text."""
    if isinstance(value, dict):
        for key, inner in value.items():
            require_plain(inner)
            if not isinstance(key, str):
                raise ValueError(  # noqa: TRY004 pydantic reports ValueError only
                    f"{key!r} is no name; write names and values such as {{width: 2}}"
                )
    elif isinstance(value, list):
        for inner in value:
            require_plain(inner)
    elif not isinstance(value, str | int | float | NoneType) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise ValueError(f"{value!r} is no text, finite number, true, false, list or mapping")

"""How the ``pai`` command talks: results on stdout, everything else on stderr."""

import getpass
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import typer

from ggs.errors import ConfigurationError


def result(text: str, end: str = "\n") -> None:
    """What was asked for, on stdout."""
    typer.echo(text + end, nl=False)


def result_json(value: Any) -> None:
    """What was asked for as JSON, on stdout; dataclasses become objects."""
    result(json.dumps(value, indent=2, default=asdict))


def say(text: str) -> None:
    """A line for the person, on stderr."""
    typer.echo(text, err=True)


def warn(text: str) -> None:
    """A warning, on stderr."""
    typer.secho(f"warning: {text}", fg=typer.colors.YELLOW, err=True)


def fail(text: str) -> None:
    """The one sentence of a failure, on stderr."""
    typer.secho(f"error: {text}", fg=typer.colors.RED, err=True)


def ask_secret(question: str) -> str:
    """A secret typed at the terminal without echo; never from the command line."""
    # typer's own prompt asks before it turns the echo off
    return getpass.getpass(f"{question}: ", sys.stderr)


def read_secret(question: str) -> str:
    """A secret from a pipe, or typed at the terminal without echo."""
    if sys.stdin.isatty():
        return ask_secret(question)
    text = sys.stdin.read(1 << 16).strip()
    if not text:
        raise ConfigurationError(f"{question}: nothing came through the pipe")
    return text


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows under headings, as wide as they need to be: on stdout, so that they can be cut and sorted."""
    cells = [list(headings)] + [
        ["-" if cell is None else str(cell) for cell in row] for row in rows
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        result(line.rstrip())


def when(milliseconds: object) -> str:
    """A time of OpenPAI's, in local time."""
    if not isinstance(milliseconds, int | float) or not 0 < milliseconds < 1e14:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(milliseconds / 1000))

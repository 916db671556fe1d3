"""Lines for a person on streams that may take no more: a log on a full disk, a pipe that nobody reads."""

import os
from contextlib import suppress
from typing import TextIO


def say(stream: TextIO, text: str) -> OSError | None:
    """Print a line at once. Returns why that cannot be; nothing is written to ``stream`` from then on."""
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        silence(stream)
        return error
    return None


def unwritten(stream: TextIO) -> OSError | None:
    """Why ``stream`` does not take what was printed to it; None where it has it all."""
    try:
        stream.flush()
    except OSError as error:
        silence(stream)
        return error
    return None


def silence(stream: TextIO) -> None:
    """Turn ``stream`` to nowhere: Python would try to write what it still holds again, and fail, when it
    ends, and make an exit code of its own of that."""
    with suppress(OSError, ValueError):  # there may be no file below it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)

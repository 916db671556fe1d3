"""Streams that take no more."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest


@pytest.fixture
def full() -> Iterator[TextIO]:
    """A file on a full disk."""
    with open("/dev/full", "w") as file:
        yield file


def test_lines_that_cannot_be_written_are_no_errors_and_no_exit_code(full: TextIO) -> None:
    code = "import sys; from ggs.output import say; x = say(sys.stderr, 'a'); assert x; say(sys.stderr, 'b')"
    done = subprocess.run([sys.executable, "-c", code], stderr=full, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (0, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--model", "lenet5", "--nodes", "2", "--bandwidth", "1Gbit", "--step-ms", "3"],
        ["train", "--dry-run", "--workers", "1", "--device", "cpu"],
        ["--version"],
    ],
)
def test_a_command_whose_output_cannot_be_written_ends_in_one_line(
    full: TextIO, arguments: list[str], unbuffered: str
) -> None:
    command = [sys.executable, "-m", "ggs.cli.main", *arguments]
    done = subprocess.run(
        command,
        stdout=full,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert done.stderr == "ggs: cannot write to standard output: No space left on device\n"
    assert done.returncode == 1

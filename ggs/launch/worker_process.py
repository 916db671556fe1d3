"""A worker process: ``python -m ggs.launch.worker_process PAYLOAD``, started by torch's elastic agent.

PAYLOAD is a file that the launcher has written for its own workers: variables to set, and a function with
its arguments. This module imports no torch, so that the variables are in place before anything does.
"""

import atexit
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ggs.launch import exit_codes, failures
from ggs.launch.processes import die_with_parent

EXIT_SECONDS = 10.0
"""How long a worker that has failed may take to wind up (threads, exit handlers) before it is cut off."""


@dataclass(frozen=True)
class Payload:
    """What the workers of one node are to do."""

    launcher: int
    """Process id of the launcher."""
    task: str
    """Name of the node, for messages."""
    variables: dict[str, str]
    """Environment variables to set first."""
    call: bytes
    """A pickled ``(function, arguments)``; apart, because reading it imports the function's module."""

    @classmethod
    def to_call(
        cls,
        task: str,
        variables: dict[str, str],
        function: Callable[..., None],
        arguments: tuple[Any, ...],
    ) -> "Payload":
        """The payload from this process to its workers."""
        return cls(os.getpid(), task, variables, pickle.dumps((function, arguments)))


def main(path: str) -> int:
    """Do what the payload at ``path`` says. Returns the exit code; a failure is left for the launcher."""
    with open(path, "rb") as file:
        payload: Payload = pickle.load(file)
    die_with_parent(payload.launcher)
    os.environ.update(payload.variables)
    try:
        function, arguments = pickle.loads(payload.call)
        function(*arguments)
    except KeyboardInterrupt:
        return exit_codes.RETRY
    except SystemExit as end:
        return _code_of(end, payload)
    except BaseException as error:
        return _fail(error, payload)
    return exit_codes.SUCCESS


def _code_of(end: SystemExit, payload: Payload) -> int:
    if end.code is None or end.code == 0:
        return exit_codes.SUCCESS
    if isinstance(end.code, int):
        return exit_codes.of_worker(end.code % 256 or exit_codes.RETRY)
    return _record(
        failures.Failure(_where(payload), str(end.code), exit_codes.RETRY, time.time()),
    )


def _fail(error: BaseException, payload: Payload) -> int:
    return _record(failures.of_exception(error, _where(payload), time.time()))


def _record(failure: failures.Failure) -> int:
    failures.write(failure, Path(os.environ["TORCHELASTIC_ERROR_FILE"]))
    sys.stdout.flush()
    sys.stderr.flush()
    # The launcher learns of this failure when the process ends: a thread that lingers must not delay it.
    cut = threading.Timer(EXIT_SECONDS, os._exit, (failure.exit_code,))
    cut.daemon = True
    cut.start()
    return failure.exit_code


def _where(payload: Payload) -> str:
    return f"rank {os.environ['RANK']} on task {payload.task}"


def end(code: int) -> NoReturn:
    """End this process as Python does, but for its last part, the teardown of the interpreter.

    A thread of gloo's may still hold a tensor of the last collective then. It lets go of it with Python's
    lock, which is not to be had any more, and aborts the process: under load one of ten trainings ended like
    that, with SIGABRT after its results. (torch 2.14, ``ProcessGroupGloo::runLoop``)
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # full, closed
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main(sys.argv[1]))

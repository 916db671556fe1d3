"""The runs of a study, several at once in processes of their own, each result as it comes."""

import multiprocessing
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from ggs.errors import GGSError

INTERRUPTED = 130
"""The exit status of a program that Ctrl-C has ended."""


def finished(
    jobs: int, execute: Callable[..., Any], runs: Sequence[Any], *arguments: Any
) -> Generator[tuple[Any, Any], None, None]:
    """Call ``execute(run, *arguments)`` for each of ``runs``, ``jobs`` at once.

    Yields (run, its result), in the order in which they end; a GGSError that a run raised is its result.
    Ctrl-C and SIGTERM end the runs under way at once: KeyboardInterrupt. So does closing the generator.
    BrokenProcessPool where a process was killed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pool = ProcessPoolExecutor(
        jobs, multiprocessing.get_context("spawn"), initializer=_leave_quietly
    )
    try:
        futures = {pool.submit(execute, run, *arguments): run for run in runs}
        for future in as_completed(futures):
            try:
                result = future.result()
            except GGSError as error:
                result = error
            yield futures[future], result
    except BaseException:
        for child in multiprocessing.active_children():
            child.kill()  # nobody would take their results
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_quietly() -> None:
    """A terminal's Ctrl-C reaches the training processes too: the parent has the last word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)

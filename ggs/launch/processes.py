"""No process left behind: workers die with their launcher, and the launcher ends what they leave.

Linux only. A worker asks the kernel to kill it when its launcher dies, however that happens. The
launcher makes itself the parent of every process that loses its own (a *subreaper*), so that what a
killed worker had started comes to it and can be ended too.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import psutil

from ggs.output import say
from ggs.signals import handled

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

LEFT_BEHIND_SECONDS = 60.0
"""How long the launcher waits for processes that workers which ended well have left running."""


class Stopped(BaseException):
    """A signal asks this process to stop. Not an Exception: no ``except Exception`` may swallow it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, of this process id, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(1)


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise :class:`Stopped` in the main thread on SIGTERM, SIGINT, SIGHUP and SIGQUIT."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    with handled(_SIGNALS, stop):
        yield


class ProcessTree:
    """The processes that this one has started since, and all that those have started."""

    def __init__(self) -> None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._earlier = _descendants()

    def wait(self, seconds: float = LEFT_BEHIND_SECONDS) -> None:
        """Wait until all have ended, for as long as given; says so if that takes more than a moment."""
        start = time.monotonic()
        said = False
        while (running := self._running()) and time.monotonic() < start + seconds:
            if not said and time.monotonic() > start + 1:
                said = True
                say(
                    sys.stderr,
                    f"ggs: waiting up to {seconds:.0f} s for processes that workers left: {running}",
                )
            time.sleep(0.05)

    def end(self) -> None:
        """Kill all that are left, and reap them. A process inside the kernel may outlast 10 seconds."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # an impatient Ctrl-C can wait
        deadline = time.monotonic() + 10
        while (running := self._running()) and time.monotonic() < deadline:
            for process in running:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.01)
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _running(self) -> list[int]:
        """Those that still run; reaps on the way those that have ended and are children of this process."""
        processes = sorted(_descendants() - self._earlier)
        return [process for process in processes if not _reap(process)]


def _descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def _reap(process: int) -> bool:
    """Whether the process has ended."""
    try:
        return os.waitpid(process, os.WNOHANG)[0] == process
    except ChildProcessError:  # not a child of this process; or gone
        return not psutil.pid_exists(process)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")

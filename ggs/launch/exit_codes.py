"""Exit codes that make OpenPAI do the right thing with a job that failed.

OpenPAI retries a task's job up to ``jobRetryCount`` times for most codes, for ever and uncounted for
130, 131, 137 and 143, and never for 132, 135, 136 and 141. So:

- what a retry can cure (a lost peer, a taken port, a full disk, a killed worker) ends with 1;
- what it cannot (a wrong setting or environment) ends with 136. Of the two codes of the never-retried
  row that stand for nothing in OpenPAI, 132 is also what a real illegal instruction ends with, which
  happens (wheels built for a newer CPU); 136, a floating-point trap, Python does not die of;
- a worker's death by a signal, and a worker's own 130, 131, 137 or 143, end with 1.

Outside OpenPAI a shell reads them: there, what no retry cures ends with 2, as wrong use does everywhere,
and a signal to the launcher with 128 plus its number.
"""

import signal
from collections.abc import Mapping

from ggs.errors import (
    ConfigurationError,
    EnvironmentVariableError,
    MismatchError,
    NonFiniteError,
    UnsupportedError,
)
from ggs.launch.environment import is_on_openpai

SUCCESS = 0
RETRY = 1
NEVER_RETRY = 136
USAGE = 2
"""What NEVER_RETRY becomes outside OpenPAI."""

_NEVER_RETRY_ERRORS = (
    ConfigurationError,
    EnvironmentVariableError,
    MismatchError,
    NonFiniteError,  # a resumed run meets the same numbers again
    UnsupportedError,
)
_NEVER_RETRIED = (132, 135, 136, 141)
_ALWAYS_RETRIED = (130, 131, 137, 143)


def of_error(error: BaseException) -> int:
    """The code for a process that ends with this exception."""
    return NEVER_RETRY if isinstance(error, _NEVER_RETRY_ERRORS) else RETRY


def of_signal(number: int, variables: Mapping[str, str]) -> int:
    """The code for a launcher that a signal stops, in the environment ``variables``."""
    return RETRY if is_on_openpai(variables) else 128 + signal.Signals(number)


def for_reader(code: int, variables: Mapping[str, str]) -> int:
    """The launcher's ``code`` as the environment ``variables`` read it: OpenPAI, or a shell."""
    return USAGE if code == NEVER_RETRY and not is_on_openpai(variables) else code


def of_worker(code: int) -> int:
    """The code to pass on for a worker's; negative: the signal that killed it."""
    return RETRY if code < 0 or code > 255 or code in _ALWAYS_RETRIED else code


def is_never_retried(code: int) -> bool:
    """Whether OpenPAI ends the job for good at this code."""
    return code in _NEVER_RETRIED

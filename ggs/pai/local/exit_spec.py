"""What OpenPAI makes of a task's exit: the code that it shows, and whether it tries again.

The runtime compares the exit code of the user's script and the last 10 MB of its log with a list of
patterns, top down; the first match gives the container's exit code, and that code the reaction. An
unknown failure becomes 255. The list is the one of OpenPAI 1.8.1 and LTP 1.5 (they are equal).
"""

import re
from dataclasses import dataclass
from enum import Enum

SEARCHED_LOG_BYTES = 10 * 1024 * 1024


class Reaction(Enum):
    """What the platform does with the job after a failure."""

    ALWAYS = "always retries it, uncounted"
    UP_TO_RETRY_COUNT = "retries it up to jobRetryCount times"
    NEVER = "never retries it"


@dataclass(frozen=True)
class ExitVerdict:
    """One exit as OpenPAI sees it."""

    user_code: int
    """Exit code of the user's script."""
    code: int
    """Exit code that OpenPAI shows and acts upon."""
    reason: str
    reaction: Reaction

    @property
    def succeeded(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        if self.succeeded:
            return "exit code 0: succeeded"
        shown = "" if self.code == self.user_code else f" (shown as {self.code})"
        return f"exit code {self.user_code}{shown}, {self.reason}: OpenPAI {self.reaction.value}"


_SIGNALS = {
    130: ("SIGINT", Reaction.ALWAYS),
    131: ("SIGQUIT", Reaction.ALWAYS),
    132: ("SIGILL", Reaction.NEVER),
    134: ("SIGABRT", Reaction.UP_TO_RETRY_COUNT),
    135: ("SIGBUS, often a full /dev/shm", Reaction.NEVER),
    136: ("SIGFPE", Reaction.NEVER),
    137: ("SIGKILL", Reaction.ALWAYS),
    139: ("SIGSEGV", Reaction.UP_TO_RETRY_COUNT),
    141: ("SIGPIPE", Reaction.NEVER),
    143: ("SIGTERM", Reaction.ALWAYS),
}

# By code, in the platform's order: patterns searched in the log in lower case. Lower-casing ten megabytes
# once is eight times faster than patterns that ignore case. They are the platform's own, with its slips:
# [errno 2] is one character, (2) is 2, and () nothing.
_LOG_PATTERNS: dict[int, tuple[str, ...]] = {
    221: (
        r"tensorflow.*resourceexhaustederror.*oom",
        r"ran out of memory trying to allocate",
    ),
    222: (r"signal code: address not mapped",),
    223: (r"cuda_error_ecc_uncorrectable",),
    224: (r"cuda driver version is insufficient for cuda runtime version",),
    225: (r"dropout supported only in cudnn v",),
    226: (r"cuda runtime error (2) : out of memory",),
    228: (
        r"unknown option",
        r"typeerror: dynamic_rnn() got multiple values for keyword argument",
        r"bad argument #2 to ",
        r"invalid argument:",
        r"option -start_symbol has no default value",
    ),
    229: (
        r"perhaps your file is in a different file format",
        r"bash: bd5/bd5_bar-train.ids",
        r"exception occurred: error opening file",
        r"filenotfounderror: [errno 2] no such file or directory",
        r"unicodeencodeerror:",
        r"unicodedecodeerror",
        r"exception: unknown text header name",
        r"exception: unknown label header name",
        r"eoferror: ran out of input",
        r"utils.lua:.*input/output error",
        r"tensorflow.python.framework.errors.unknownerror:.*input/output error",
        r"cp: failed to close.*input/output error",
        r"exception occurred:.* input/output error",
    ),
    230: (r"valueerror: restore called with invalid save path",),
    231: (
        r"syntaxerror: invalid syntax",
        r"unpicklingerror",
        r"assign requires shapes of both tensors to match",
        r"torch/install/share/lua.*c.* exception",
        r"attributeerror:.*has no attribute",
        r"nameerror: name.* is not defined",
    ),
    232: (r"importerror:",),
    233: (r"indexerror:.*index out of range",),
    234: (r"segmentation fault",),
    235: (r"core dumped",),
}
_ALWAYS_RETRIED = {223}

_LOG_RULES = [
    (
        code,
        re.compile("|".join(patterns)),
        Reaction.ALWAYS if code in _ALWAYS_RETRIED else Reaction.NEVER,
    )
    for code, patterns in _LOG_PATTERNS.items()
]


def classify(user_code: int, log: str, *, out_of_memory: bool = False) -> ExitVerdict:
    """What OpenPAI makes of a script that ended with ``user_code`` after printing ``log``.

    ``out_of_memory``: the kernel killed the container for exceeding its ``memoryMB``.
    """
    if user_code == 0:
        return ExitVerdict(0, 0, "succeeded", Reaction.NEVER)
    if out_of_memory:
        return ExitVerdict(user_code, -1200, "the container exceeded its memoryMB", Reaction.NEVER)
    if user_code in _SIGNALS:
        signal, reaction = _SIGNALS[user_code]
        return ExitVerdict(user_code, user_code, signal, reaction)
    searched = log[-SEARCHED_LOG_BYTES:].lower()
    if user_code == 127 and "command not found" in searched:
        return ExitVerdict(127, 220, "command not found", Reaction.NEVER)
    for code, pattern, reaction in _LOG_RULES:
        if match := pattern.search(searched):
            reason = f"the log contains {match.group()[:60]!r}"
            return ExitVerdict(user_code, code, reason, reaction)
    return ExitVerdict(
        user_code, 255, "a failure that OpenPAI does not know", Reaction.UP_TO_RETRY_COUNT
    )

"""Follow a job to its end, and never for ever.

OpenPAI can show WAITING for a job that has long ended, when the part that copies states into its
database hangs (microsoft/pai#5640). Two signs end the waiting: tasks that have all ended while the
job stays WAITING for longer than any delay between retries, and a WAITING that has not changed for
a whole day. Above both stands the total time-out.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from ggs.errors import PAIError, ServerRefusedError, UnreachableError
from ggs.pai.client.rest import Client
from ggs.pai.client.status import ENDED, JobStatus, read


class Outcome(IntEnum):
    """How the waiting ended; the values are the exit codes of ``pai job wait``."""

    SUCCEEDED = 0
    FAILED = 1
    STOPPED = 5
    STALLED = 6
    TIMED_OUT = 124


@dataclass(frozen=True)
class WaitLimits:
    """How long to wait, in seconds.

    ``contradiction`` is above OpenPAI's longest delay between two retries (15 minutes); ``outage``
    is how long the server may be unreachable before the waiting is given up.
    """

    total: float = 7 * 86400
    unchanged: float = 86400
    contradiction: float = 1200
    outage: float = 1800
    interval: float = 10


def wait(
    client: Client,
    name: str,
    user: str | None,
    limits: WaitLimits,
    show: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Outcome, JobStatus | None, str]:
    """Poll until the job has ended or one of ``limits`` is reached; returns what happened, and one sentence.

    ``show`` gets a line for each change. Raises PAIError where the server refuses to answer, or
    cannot be reached for longer than ``limits.outage``.
    """
    start = changed = answered = clock()
    before = ""
    job: JobStatus | None = None
    while True:
        try:
            job = read(client.job(name, user))
            answered = clock()
        except PAIError as error:
            if not may_pass(error, seen=job is not None) or clock() - answered > limits.outage:
                raise
            show(f"no answer, asking again: {error}")
        now = clock()
        if job is not None:
            if job.ended:
                return Outcome[job.state], job, job.reason()
            if job.summary() != before:
                before, changed = job.summary(), now
                show(before)
            stalled = _stalled(job, now - changed, limits)
            if stalled:
                return Outcome.STALLED, job, stalled
        left = start + limits.total - now
        if left <= 0:
            state = job.state if job else "unknown"
            return Outcome.TIMED_OUT, job, f"state {state} after {limits.total:.0f} s"
        sleep(min(limits.interval, left))


def may_pass(error: PAIError, seen: bool) -> bool:
    """Whether asking again can help; ``seen`` is whether the job has been answered for before."""
    if not isinstance(error, ServerRefusedError | UnreachableError):
        return False
    if not isinstance(error, ServerRefusedError) or error.status == 429:
        return True
    # LTP says "missing" with a 500, also when its database fails for a moment
    return error.status >= 500 and (seen or error.code != "NoJobError")


def _stalled(job: JobStatus, unchanged: float, limits: WaitLimits) -> str:
    """Why waiting longer is pointless; "" while it is not."""
    if job.state != "WAITING":
        return ""
    tasks = [task.task_state for _, task in job.tasks]
    over = bool(tasks) and all(state in ENDED for state in tasks)
    if (over or job.job_status.completed_time) and unchanged > limits.contradiction:
        return (
            "OpenPAI shows WAITING although the job has ended (a fault of the server, "
            "microsoft/pai#5640): see the job's logs, and tell an administrator"
        )
    if unchanged > limits.unchanged:
        return (
            f"WAITING without any change for {unchanged / 3600:.0f} h: the virtual cluster has no "
            "room for the whole job, or the server's states are stuck (microsoft/pai#5640); ask an "
            "administrator, or wait longer with --unchanged"
        )
    return ""

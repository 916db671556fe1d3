"""What OpenPAI does when tasks end: when an attempt is over, and whether another one follows."""

from collections.abc import Sequence
from dataclasses import dataclass

from ggs.pai.job.model import Job
from ggs.pai.local.exit_spec import ExitVerdict, Reaction
from ggs.pai.local.task_environment import TaskId, tasks_of


@dataclass(frozen=True)
class Ended:
    """One task's end."""

    task: TaskId
    verdict: ExitVerdict


@dataclass(frozen=True)
class AttemptResult:
    """Why an attempt is over."""

    succeeded: bool
    cause: Ended
    explanation: str


def judge(job: Job, ended: Sequence[Ended]) -> AttemptResult | None:
    """Whether the ends so far, in the order of their time, complete the attempt.

    The first condition of any role that is met decides, whatever other tasks still do. When all
    tasks have ended and none was met, the attempt has succeeded, even if tasks failed.
    """
    failed = dict.fromkeys(job.task_roles, 0)
    succeeded = dict.fromkeys(job.task_roles, 0)
    for end in ended:
        role = job.task_roles[end.task.role]
        counts = succeeded if end.verdict.succeeded else failed
        counts[end.task.role] += 1
        if not end.verdict.succeeded and 1 <= role.min_failed <= counts[end.task.role]:
            text = f"{counts[end.task.role]} failed, minFailedInstances is {role.min_failed}"
            return AttemptResult(False, end, f"{end.task.role}: {text}")
        if end.verdict.succeeded and 1 <= role.min_succeeded <= counts[end.task.role]:
            text = f"{counts[end.task.role]} succeeded, enough for the job"
            return AttemptResult(True, end, f"{end.task.role}: {text}")
    if len(ended) == len(tasks_of(job)):
        text = "all tasks have ended and no role's completion says that the job failed"
        return AttemptResult(True, ended[-1], text)
    return None


@dataclass(frozen=True)
class RetryDecision:
    """What follows a failed attempt."""

    retry: bool
    counted: int
    """Retries used of ``jobRetryCount``, this one included."""
    sentence: str


def decide_retry(
    job: Job, result: AttemptResult, counted: int, attempts: int, max_attempts: int
) -> RetryDecision:
    """Whether the whole job starts again: with gang allocation, one task's failure is everyone's.

    ``counted``: retries of ``jobRetryCount`` used so far; ``attempts``: attempts made so far.
    OpenPAI has no ``max_attempts``; a laptop needs one.
    """
    verdict = result.cause.verdict
    who = f"{result.cause.task}: {verdict}"
    if verdict.reaction is Reaction.NEVER:
        return RetryDecision(False, counted, who)
    if verdict.reaction is Reaction.UP_TO_RETRY_COUNT:
        if counted >= job.job_retry_count:
            text = f"{who}; {_used(counted, job.job_retry_count)}, so the job fails"
            return RetryDecision(False, counted, text)
        counted += 1
        who += f"; this is retry {counted} of {job.job_retry_count}"
    if attempts >= max_attempts:
        text = f"{who}; here it ends after {attempts} attempts, OpenPAI would go on"
        return RetryDecision(False, counted, text)
    return RetryDecision(True, counted, who)


def _used(counted: int, limit: int) -> str:
    return f"jobRetryCount is {limit}" if limit == 0 else f"{counted} of {limit} are used up"

"""When a job ends, and what happens after a failure."""

from __future__ import annotations

from collections.abc import Iterator

from ggs.pai.job.document import Path
from ggs.pai.validate.finding import JobView, Violation, rule


@rule(
    "completion-below-minus-one",
    "error",
    consequence="refused by the portal; by REST stored, then FAILED with -1100",
    fix="use -1 for never, or a positive number",
)
def completion_negative(view: JobView) -> Iterator[Violation]:
    """-1 means never; the scheduler's own schema allows nothing below."""
    for path, value in _completions(view):
        if value < -1:
            yield Violation(path, f"{path[-1]} is {value}")


@rule(
    "completion-first-success",
    "warning",
    consequence="the first task that ends successfully ends the job: the others are killed, "
    "perhaps before the weights are saved",
    fix="leave minSucceededInstances out, or write -1 or the number of instances",
)
def first_success(view: JobView) -> Iterator[Violation]:
    """minSucceededInstances: 1 is for jobs where one task's answer is enough; workers that train
    together all have to end."""
    for role in view.roles:
        path = ("taskRoles", role, "completion", "minSucceededInstances")
        value, instances = view.integer(*path), view.instances(role)
        if value is not None and 0 < value < instances:
            yield Violation(path, f"{value} of {instances} tasks end the job")


@rule(
    "completion-unreachable",
    "warning",
    consequence="the number is never reached: the job ends only when all its tasks have ended",
    fix="write at most the number of instances, or -1",
)
def unreachable(view: JobView) -> Iterator[Violation]:
    """A number of tasks that the role does not have is the same as -1."""
    for path, value in _completions(view):
        if value > view.instances(str(path[1])):
            instances = view.instances(str(path[1]))
            yield Violation(path, f"{path[-1]} is {value}, but there are {instances} instances")


@rule(
    "completion-failures-ignored",
    "warning",
    consequence="the tasks that are left wait for the failed one: the job runs on without work "
    "until a time-out, or for ever",
    fix="leave minFailedInstances out or write 1",
)
def failures_ignored(view: JobView) -> Iterator[Violation]:
    """Workers that train together cannot go on without one of them: the first failure must end
    the attempt, so that all restart."""
    for role in view.roles:
        path = ("taskRoles", role, "completion", "minFailedInstances")
        value = view.integer(*path)
        if value is not None and view.tasks > 1 and (value == -1 or value > 1):
            often = "no failure ends" if value == -1 else f"only {value} failures end"
            yield Violation(path, f"{often} the attempt")


@rule(
    "completion-role-ends-job",
    "warning",
    consequence="the first role whose tasks have all succeeded ends the job: tasks of the others "
    "are killed",
    fix="write completion.minSucceededInstances: -1 for roles that must not end the job, or the "
    "number of instances for the one that should",
)
def role_ends_job(view: JobView) -> Iterator[Violation]:
    """Each role has its own completion policy, and the first that is met decides for the job; the
    default is all tasks of that role."""
    if len(view.roles) < 2:
        return
    for role in view.roles:
        path = ("taskRoles", role, "completion", "minSucceededInstances")
        if not view.integer(*path):
            yield Violation(path, f"{role!r} alone can end the job")


def _completions(view: JobView) -> Iterator[tuple[Path, int]]:
    for role in view.roles:
        for key in ("minFailedInstances", "minSucceededInstances"):
            path = ("taskRoles", role, "completion", key)
            value = view.integer(*path)
            if value is not None:
                yield path, value


@rule(
    "task-retry-ignored",
    "warning",
    consequence="the value has no effect",
    fix="use jobRetryCount: all tasks are retried together",
)
def task_retry(view: JobView) -> Iterator[Violation]:
    """taskRetryCount counts only with extras.gangAllocation: false."""
    for role in view.roles:
        path = ("taskRoles", role, "taskRetryCount")
        if view.gang and view.integer(*path):
            yield Violation(path, f"taskRetryCount is {view.integer(*path)}")


@rule(
    "no-retry",
    "warning",
    consequence="FAILED for good on the first lost port or broken connection",
    fix="write jobRetryCount: 3 or more, and keep checkpoints on a storage",
)
def no_retry(view: JobView) -> Iterator[Violation]:
    """Ports are not reserved on the cluster and tasks start at different times, so a job of
    several tasks fails now and then through no fault of its own."""
    if view.tasks > 1 and view.mapping().get("jobRetryCount", 0) == 0:
        yield Violation(("jobRetryCount",), f"{view.tasks} tasks and no retry")


@rule(
    "gang-not-false",
    "warning",
    consequence="the value is taken for true",
    fix="write true or false, or leave it out",
)
def gang_not_boolean(view: JobView) -> Iterator[Violation]:
    """Only the literal false turns gang allocation off; no, off and "false" are text."""
    value = view.extras.get("gangAllocation", True)
    if not isinstance(value, bool):
        yield Violation(("extras", "gangAllocation"), f"{value!r} is not a truth value")


@rule(
    "gang-off",
    "warning",
    consequence="tasks start without each other's addresses: PAI_HOST_IP_… of a peer is missing "
    "or None, ports are wrong, and a rendezvous waits for ever",
    fix="leave gangAllocation out unless the tasks do not talk to each other",
)
def gang_off(view: JobView) -> Iterator[Violation]:
    """Without gang allocation no barrier waits until all tasks have an address."""
    if not view.gang and view.tasks > 1:
        yield Violation(("extras", "gangAllocation"), f"{view.tasks} tasks without gang allocation")

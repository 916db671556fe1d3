"""When an attempt is over, and whether another follows."""

import pytest

from ggs.pai.job.model import Job
from ggs.pai.local.exit_spec import classify
from ggs.pai.local.policy import AttemptResult, Ended, decide_retry, judge
from ggs.pai.local.task_environment import TaskId

JOB = """
protocolVersion: 2
name: policy
type: job
jobRetryCount: {retries}
prerequisites: [{{type: dockerimage, name: image, uri: "ggs:0.1"}}]
taskRoles:
  chief:
    instances: 1
    completion: {{minFailedInstances: {chief_failed}, minSucceededInstances: {chief_succeeded}}}
    dockerImage: image
    resourcePerInstance: {{cpu: 1, memoryMB: 1024, gpu: 0}}
    commands: [echo]
  worker:
    instances: 2
    completion: {{minFailedInstances: {failed}, minSucceededInstances: {succeeded}}}
    dockerImage: image
    resourcePerInstance: {{cpu: 1, memoryMB: 1024, gpu: 0}}
    commands: [echo]
"""


def job(
    retries: int = 0,
    failed: int | str = "null",
    succeeded: int | str = "null",
    chief_failed: int | str = "null",
    chief_succeeded: int | str = -1,
) -> Job:
    return Job.load(
        JOB.format(
            retries=retries,
            failed=failed,
            succeeded=succeeded,
            chief_failed=chief_failed,
            chief_succeeded=chief_succeeded,
        )
    )


def ended(*ends: tuple[str, int, int]) -> list[Ended]:
    return [Ended(TaskId(role, index), classify(code, "")) for role, index, code in ends]


@pytest.mark.parametrize(
    ("policy", "ends", "succeeded"),
    [
        # The defaults: one failure fails, all of a role succeed.
        ({}, [("worker", 0, 1)], False),
        ({}, [("worker", 0, 0)], None),
        ({}, [("worker", 0, 0), ("worker", 1, 0)], True),
        # One role is enough, whatever the other does.
        ({"chief_succeeded": "null"}, [("chief", 0, 0)], True),
        # 0 is the default, too.
        ({"failed": 0, "succeeded": 0}, [("worker", 1, 1)], False),
        ({"failed": 2}, [("worker", 0, 1)], None),
        ({"failed": 2}, [("worker", 0, 1), ("worker", 1, 1)], False),
        ({"succeeded": 1}, [("worker", 1, 0)], True),
        # -1: no number is enough; when all have ended, the job has succeeded.
        ({"failed": -1, "succeeded": -1}, [("worker", 0, 1), ("worker", 1, 1)], None),
        (
            {"failed": -1, "succeeded": -1},
            [("worker", 0, 1), ("worker", 1, 1), ("chief", 0, 0)],
            True,
        ),
        # The first condition to be met decides.
        ({"succeeded": 1}, [("worker", 1, 0), ("chief", 0, 1)], True),
        ({"succeeded": 1}, [("chief", 0, 1), ("worker", 1, 0)], False),
    ],
)
def test_an_attempts_end(
    policy: dict[str, int | str], ends: list[tuple[str, int, int]], succeeded: bool | None
) -> None:
    result = judge(job(**policy), ended(*ends))  # type: ignore[arg-type]
    assert (result and result.succeeded) == succeeded


def test_the_task_that_met_the_condition_is_the_cause() -> None:
    result = judge(job(failed=2), ended(("worker", 1, 1), ("worker", 0, 132), ("chief", 0, 1)))
    assert result is not None
    assert result.cause.task == TaskId("worker", 0)


def failure(code: int, log: str = "") -> AttemptResult:
    return AttemptResult(False, Ended(TaskId("worker", 0), classify(code, log)), "")


@pytest.mark.parametrize(
    ("retries", "counted", "code", "retry", "counted_after"),
    [
        (0, 0, 1, False, 0),
        (2, 0, 1, True, 1),
        (2, 1, 1, True, 2),
        (2, 2, 1, False, 2),
        (0, 0, 137, True, 0),
        (2, 2, 143, True, 2),
        (5, 0, 132, False, 0),
        (5, 0, 136, False, 0),
    ],
)
def test_a_retry(retries: int, counted: int, code: int, retry: bool, counted_after: int) -> None:
    decision = decide_retry(job(retries), failure(code), counted, 1, max_attempts=10)
    assert (decision.retry, decision.counted) == (retry, counted_after)


def test_a_retry_says_why() -> None:
    def sentence(retries: int, counted: int, code: int, attempts: int = 1) -> str:
        result = decide_retry(job(retries), failure(code), counted, attempts, max_attempts=3)
        return result.sentence

    assert sentence(3, 1, 1).endswith("up to jobRetryCount times; this is retry 2 of 3")
    assert sentence(0, 0, 1).endswith("jobRetryCount is 0, so the job fails")
    assert sentence(3, 3, 1).endswith("3 of 3 are used up, so the job fails")
    assert sentence(3, 0, 137) == (
        "worker:0: exit code 137, SIGKILL: OpenPAI always retries it, uncounted"
    )
    assert sentence(0, 0, 137, attempts=3).endswith(
        "here it ends after 3 attempts, OpenPAI would go on"
    )

from collections import deque
from typing import Any

import pytest

from ggs.errors import ServerRefusedError, UnreachableError
from ggs.pai.client.clusters import Cluster
from ggs.pai.client.rest import Client
from ggs.pai.client.wait import Outcome, WaitLimits, wait
from tests.pai import fake_server as fake
from tests.pai.conftest import QUICK
from tests.pai.fake_server import TOKEN, FakePAI, task

MINUTE = 60.0


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def follow(client: Client, **limits: float) -> tuple[Outcome, str, list[str], float]:
    clock, lines = Clock(), list[str]()
    outcome, _, reason = wait(
        client, "one", None, WaitLimits(**limits), lines.append, clock, clock.sleep
    )
    return outcome, reason, lines, clock.now - 1000.0


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", "STOPPED"])
def test_the_outcome_follows_the_job(server: FakePAI, client: Client, state: str) -> None:
    states = [{"state": "WAITING"}] * 2 + [{"state": "RUNNING"}] * 3 + [{"state": state}]
    server.add_job("one", states=deque(states))
    outcome, _, lines, elapsed = follow(client)
    assert outcome.name == state
    assert lines == ["WAITING", "RUNNING"]
    assert elapsed == 5 * 10


def test_progress_tells_of_tasks_and_retries(server: FakePAI, client: Client) -> None:
    def tasks(*states: str) -> dict[str, Any]:
        return {"worker": [task("worker", index, state) for index, state in enumerate(states)]}

    failed = {
        "state": "FAILED",
        "appExitCode": 255,
        "appExitTriggerTaskRoleName": "worker",
        "appExitTriggerTaskIndex": 1,
        "appExitSpec": {"phrase": "PAIRuntimeUnknownFailed", "reason": ["user's code\nfailed"]},
    }
    states = [
        {"state": "RUNNING", "tasks": tasks("RUNNING", "WAITING")},
        {"state": "RUNNING", "tasks": tasks("RUNNING", "RUNNING")},
        {"state": "WAITING", "retries": 1, "tasks": tasks("FAILED", "STOPPED")},
        failed,
    ]
    server.add_job("one", states=deque(states))
    outcome, reason, lines, _ = follow(client)
    assert outcome is Outcome.FAILED
    assert lines == [
        "RUNNING, 1 task running, 1 task waiting",
        "RUNNING, 2 tasks running",
        "WAITING, after 1 retries, 1 task failed, 1 task stopped",
    ]
    assert reason == (
        "task worker:1 decided it; exit code 255; PAIRuntimeUnknownFailed; user's code failed"
    )


def test_waiting_ends_when_the_time_is_up(server: FakePAI, client: Client) -> None:
    server.add_job("one", states=deque([{"state": "RUNNING"}]))
    outcome, reason, _, elapsed = follow(client, total=95, interval=10)
    assert outcome is Outcome.TIMED_OUT
    assert reason == "state RUNNING after 95 s"
    assert elapsed == 95


def test_a_job_that_has_ended_but_is_shown_as_waiting(server: FakePAI, client: Client) -> None:
    ended = {"worker": [task("worker", 0, "SUCCEEDED"), task("worker", 1, "SUCCEEDED")]}
    server.add_job("one", tasks=ended)
    outcome, reason, _, elapsed = follow(client)
    assert outcome is Outcome.STALLED
    assert "although the job has ended" in reason
    # OpenPAI may wait 15 minutes between two attempts, with the same look
    assert 15 * MINUTE < elapsed < 30 * MINUTE


def test_a_waiting_that_never_changes(server: FakePAI, client: Client) -> None:
    server.add_job("one")
    outcome, reason, lines, elapsed = follow(client, unchanged=3600, interval=60)
    assert outcome is Outcome.STALLED
    assert "WAITING without any change for 1 h" in reason
    assert lines == ["WAITING"]
    assert elapsed == 3660


def test_a_retry_is_no_stall(server: FakePAI, client: Client) -> None:
    waiting = {"state": "WAITING", "tasks": {"worker": [task("worker", 0, "FAILED")]}}
    states = [waiting] * 80 + [{"state": "RUNNING"}, {"state": "SUCCEEDED"}]  # 13 minutes
    server.add_job("one", states=deque(dict(state) for state in states))
    assert follow(client)[0] is Outcome.SUCCEEDED


def test_an_outage_is_waited_out(server: FakePAI, client: Client) -> None:
    server.add_job("one", states=deque([{"state": "RUNNING"}, {"state": "SUCCEEDED"}]))
    server.fault("GET", *[fake.page(502)] * 7)
    outcome, _, lines, _ = follow(client)
    assert outcome is Outcome.SUCCEEDED
    assert any(
        line.startswith("no answer, asking again: OpenPAI's server is not") for line in lines
    )


def test_an_outage_that_lasts_is_told(server: FakePAI, client: Client) -> None:
    server.fault("GET", *[fake.drop] * 99)
    with pytest.raises(UnreachableError, match="closed the connection too early"):
        follow(client, outage=100, interval=20)


def test_a_missing_job_is_not_waited_for(client: Client) -> None:
    with pytest.raises(ServerRefusedError) as error:
        follow(client)
    assert error.value.code == "NoJobError"


def test_ltps_database_may_fail_for_a_moment() -> None:
    body = b'{"code":"UnknownError","message":"Failed to retrieve job alice~one."}'

    def fail_once(handler: fake._Handler) -> None:
        handler.answer()
        server.fault("GET", fake.say(500, body))

    with FakePAI("ltp") as server:
        server.add_job("one", states=deque([{"state": "RUNNING"}, {"state": "SUCCEEDED"}]))
        server.fault("GET", fail_once)
        with Client(Cluster("test", server.url, "alice"), TOKEN, QUICK) as client:
            assert follow(client)[0] is Outcome.SUCCEEDED

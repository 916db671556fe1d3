import io
from collections import deque
from typing import Any

import pytest

from ggs.errors import PAIError, ServerRefusedError, UnreachableError
from ggs.pai.client import logs
from ggs.pai.client.rest import Client
from tests.pai import fake_server as fake
from tests.pai.fake_server import FakePAI, StoredJob, task


@pytest.fixture
def job(server: FakePAI) -> StoredJob:
    """A running job of two tasks, of which the second has no log yet."""
    tasks = [task("worker", 0, "RUNNING", "one"), task("worker", 1, "WAITING", "one")]
    return server.add_job(
        "one",
        states=deque([{"state": "RUNNING"}]),
        tasks={"worker": tasks},
        logs={"worker:0": b"a\nb\nc\n"},
    )


def read(client: Client, log: logs.TaskLog) -> bytes:
    return b"".join(log.read(client))


def test_only_what_is_new_is_read(client: Client, job: StoredJob) -> None:
    first, second = logs.select(client, "one", None, logs.Choice())
    assert (first.label, second.label) == ("worker:0", "worker:1")
    assert read(client, first) == b"a\nb\nc\n"
    assert read(client, first) == b""
    job.logs["worker:0"] += b"d"
    assert read(client, first) == b"d"
    assert read(client, second) == b""
    job.logs["worker:1"] = b"late\n"
    assert read(client, second) == b"late\n"


def test_a_log_that_was_full_starts_again(client: Client, job: StoredJob) -> None:
    log = logs.select(client, "one", None, logs.Choice("worker", 0))[0]
    assert read(client, log) == b"a\nb\nc\n"
    job.logs["worker:0"] = b"n\n"
    assert read(client, log) == b""
    assert read(client, log) == b"n\n"


@pytest.mark.parametrize(("lines", "tail"), [(0, b""), (2, b"b\nc\n"), (9, b"a\nb\nc\n")])
def test_the_tail(client: Client, job: StoredJob, lines: int, tail: bytes) -> None:
    log = logs.select(client, "one", None, logs.Choice("worker", 0))[0]
    assert log.tail(client, lines) == tail
    job.logs["worker:0"] += b"d\n"
    assert read(client, log) == (b"d\n" if lines else b"a\nb\nc\nd\n")


def test_the_tail_of_a_long_log(
    client: Client, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "TAIL_BYTES", 1000)
    job.logs["worker:0"] = b"".join(b"line %d\n" % number for number in range(10_000))
    log = logs.select(client, "one", None, logs.Choice("worker", 0))[0]
    assert log.tail(client, 2) == b"line 9998\nline 9999\n"
    assert log.offset == len(job.logs["worker:0"])
    assert len(log.tail(client, 10_000)) == 1000


def test_a_choice_that_is_none(client: Client, job: StoredJob) -> None:
    with pytest.raises(PAIError, match="no such task; its tasks: worker:0, worker:1"):
        logs.select(client, "one", None, logs.Choice("master"))
    log = logs.select(client, "one", None, logs.Choice("worker", 0, "core"))[0]
    with pytest.raises(PAIError, match=r"no log 'core'; it has \['all', 'stdout'\]"):
        read(client, log)


class Follower:
    """What following a job's logs shows and says."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, bytes]] = []
        self.said: list[str] = []

    def __call__(self, client: Client, seconds: float = 60, **choice: Any) -> bool:
        tail = choice.pop("tail", None)
        limits = logs.FollowLimits(seconds, outage=choice.pop("outage", 60), interval=0.01)
        return logs.follow(
            client, "one", None, logs.Choice(**choice), limits, self.show, self.said.append, tail
        )

    def show(self, log: logs.TaskLog, part: bytes, count: int) -> None:
        self.shown.append((log.label, part))


def test_following_ends_with_the_job(server: FakePAI, client: Client, job: StoredJob) -> None:
    retried = [task("worker", 0, "RUNNING", "one"), task("worker", 1, "RUNNING", "one")]
    for item in retried:
        item["containerLog"] = item["containerLog"].replace("/attempts/0/task", "/attempts/1/task")
    job.states = deque(
        [
            {"state": "RUNNING"},
            {"state": "RUNNING", "tasks": {"worker": retried}},
            {"state": "SUCCEEDED", "tasks": {"worker": retried}},
        ]
    )
    follow = Follower()
    assert follow(client)
    # a new attempt has a new log, read from its start
    assert follow.shown == [("worker:0", b"a\nb\nc\n")] * 2


def test_following_ends_when_the_time_is_up(client: Client, job: StoredJob) -> None:
    assert not Follower()(client, seconds=0.2)


def test_following_waits_for_the_first_task(client: Client, job: StoredJob) -> None:
    """Right after a submission OpenPAI has not made the tasks yet."""
    job.states = deque(
        [{"state": "WAITING", "tasks": {}} for _ in range(3)]
        + [{"state": "RUNNING"}, {"state": "SUCCEEDED"}]
    )
    follow = Follower()
    assert follow(client, index=0)
    assert follow.said == ["WAITING, no tasks yet: waiting for them"]
    assert follow.shown == [("worker:0", b"a\nb\nc\n")]


def test_following_a_job_that_ends_without_a_task(client: Client, job: StoredJob) -> None:
    job.states = deque([{"state": "WAITING", "tasks": {}}, {"state": "STOPPED", "tasks": {}}])
    follow = Follower()
    assert follow(client)
    assert follow.shown == []


def test_following_begins_with_the_tail(client: Client, job: StoredJob) -> None:
    job.states = deque([{"state": "RUNNING"}, {"state": "SUCCEEDED"}])
    follow = Follower()
    assert follow(client, tail=1)
    assert follow.shown == [("worker:1", b""), ("worker:0", b"c\n")]


def test_following_waits_out_an_outage(server: FakePAI, client: Client, job: StoredJob) -> None:
    def then_fail(handler: fake._Handler) -> None:
        handler.answer()
        server.fault("GET", *[fake.say(500, b'{"message":"database"}')] * 4)

    job.states = deque([{"state": "RUNNING"}, {"state": "SUCCEEDED"}])
    server.fault("GET", then_fail)
    follow = Follower()
    assert follow(client)
    assert follow.said[0].startswith("no answer, asking again: OpenPAI's server failed")
    assert follow.shown == [("worker:0", b"a\nb\nc\n")]
    job.states = deque([{"state": "RUNNING"}])
    server.fault("GET", then_fail, *[fake.page(502)] * 99)
    with pytest.raises(UnreachableError, match="'502 Bad Gateway'"):
        follow(client, outage=0)


@pytest.mark.parametrize("choice", [{"role": "master"}, {"kind": "core"}])
def test_following_what_is_not_there_ends_at_once(
    client: Client, job: StoredJob, choice: dict[str, str]
) -> None:
    with pytest.raises(PAIError, match="has no"):
        Follower()(client, **choice)


def test_a_missing_job_is_not_followed(client: Client) -> None:
    with pytest.raises(ServerRefusedError, match="there is no job 'one'"):
        Follower()(client)


def test_lines_of_several_tasks_do_not_mix(client: Client, job: StoredJob) -> None:
    first, second = logs.select(client, "one", None, logs.Choice())
    stream = io.BytesIO()
    printer = logs.Printer(stream)
    printer.show(first, b"one\ntw", 2)
    printer.show(second, b"eins\nzw", 2)
    printer.show(first, b"o\nend", 2)
    printer.show(second, b"ei\n", 2)
    printer.finish()
    assert stream.getvalue().decode().splitlines() == [
        "worker:0 | one",
        "worker:1 | eins",
        "worker:0 | two",
        "worker:1 | zwei",
        "worker:0 | end",
    ]


def test_one_task_is_printed_as_it_is(client: Client, job: StoredJob) -> None:
    log = logs.select(client, "one", None, logs.Choice("worker", 0))[0]
    stream = io.BytesIO()
    printer = logs.Printer(stream)
    assert not printer.shown
    printer.show(log, b"50 %\r\xff", 1)
    assert printer.shown
    printer.finish()
    assert stream.getvalue() == b"50 %\r\xff"

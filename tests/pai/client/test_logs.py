import io
from collections import deque

import pytest

from ggs.errors import PAIError, UnreachableError
from ggs.pai.client import logs
from ggs.pai.client.rest import Client
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
    first, second = logs.select(client, "one", None, None, None, "all")
    assert (first.label, second.label) == ("worker:0", "worker:1")
    assert read(client, first) == b"a\nb\nc\n"
    assert read(client, first) == b""
    job.logs["worker:0"] += b"d"
    assert read(client, first) == b"d"
    assert read(client, second) == b""
    job.logs["worker:1"] = b"late\n"
    assert read(client, second) == b"late\n"


def test_a_log_that_was_full_starts_again(client: Client, job: StoredJob) -> None:
    log = logs.select(client, "one", None, "worker", 0, "all")[0]
    assert read(client, log) == b"a\nb\nc\n"
    job.logs["worker:0"] = b"n\n"
    assert read(client, log) == b""
    assert read(client, log) == b"n\n"


@pytest.mark.parametrize(("lines", "tail"), [(0, b""), (2, b"b\nc\n"), (9, b"a\nb\nc\n")])
def test_the_tail(client: Client, job: StoredJob, lines: int, tail: bytes) -> None:
    log = logs.select(client, "one", None, "worker", 0, "all")[0]
    assert log.tail(client, lines) == tail
    job.logs["worker:0"] += b"d\n"
    assert read(client, log) == (b"d\n" if lines else b"a\nb\nc\nd\n")


def test_the_tail_of_a_long_log(
    client: Client, job: StoredJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "TAIL_BYTES", 1000)
    job.logs["worker:0"] = b"".join(b"line %d\n" % number for number in range(10_000))
    log = logs.select(client, "one", None, "worker", 0, "all")[0]
    assert log.tail(client, 2) == b"line 9998\nline 9999\n"
    assert log.offset == len(job.logs["worker:0"])
    assert len(log.tail(client, 10_000)) == 1000


def test_a_choice_that_is_none(client: Client, job: StoredJob) -> None:
    with pytest.raises(PAIError, match="no such task; its tasks: worker:0, worker:1"):
        logs.select(client, "one", None, "master", None, "all")
    log = logs.select(client, "one", None, "worker", 0, "core")[0]
    with pytest.raises(UnreachableError, match=r"no log 'core'; it has \['all', 'stdout'\]"):
        read(client, log)


def test_following_ends_with_the_job(server: FakePAI, client: Client, job: StoredJob) -> None:
    chosen = logs.select(client, "one", None, None, None, "all")
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
    output: list[tuple[str, bytes]] = []
    logs.follow(
        client, "one", None, chosen, lambda log, part: output.append((log.label, part)), 60, 0.01
    )
    # a new attempt has a new log, read from its start
    assert output == [("worker:0", b"a\nb\nc\n")] * 2


def test_following_ends_when_the_time_is_up(client: Client, job: StoredJob) -> None:
    chosen = logs.select(client, "one", None, None, None, "all")
    logs.follow(client, "one", None, chosen, lambda *_: None, 0.2, 0.01)


def test_lines_of_several_tasks_do_not_mix(client: Client, job: StoredJob) -> None:
    first, second = logs.select(client, "one", None, None, None, "all")
    stream = io.BytesIO()
    printer = logs.Printer(stream, labels=True)
    printer.show(first, b"one\ntw")
    printer.show(second, b"eins\nzw")
    printer.show(first, b"o\nend")
    printer.show(second, b"ei\n")
    printer.finish()
    assert stream.getvalue().decode().splitlines() == [
        "worker:0 | one",
        "worker:1 | eins",
        "worker:0 | two",
        "worker:1 | zwei",
        "worker:0 | end",
    ]


def test_one_task_is_printed_as_it_is(client: Client, job: StoredJob) -> None:
    log = logs.select(client, "one", None, "worker", 0, "all")[0]
    stream = io.BytesIO()
    printer = logs.Printer(stream, labels=False)
    assert not printer.shown
    printer.show(log, b"50 %\r\xff")
    assert printer.shown
    printer.finish()
    assert stream.getvalue() == b"50 %\r\xff"

"""How launchers meet, tell each other of failures, and end processes; without starting workers.

Real workers through the real entrypoint are in tests/whole/test_entrypoint.py.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ggs.errors import ConfigurationError, MismatchError, RendezvousError
from ggs.launch import coordinator, exit_codes, member, rendezvous, script
from ggs.launch import failures as failure
from ggs.launch.channel import MAX_LINE, Channel
from ggs.launch.coordinator import Coordinator
from ggs.launch.failures import Failure
from ggs.launch.launcher import guard, rendezvous_of
from ggs.launch.placement import Devices, LaunchOptions, Placement, place
from ggs.launch.processes import ProcessTree, Stopped
from ggs.launch.rendezvous import Rendezvous
from tests.launch.ports import free_ports
from tests.launch.variables import pai_variables
from tests.waiting import until


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No node gives up on another's report because a thread of this process gets no processor."""
    for module in (coordinator, member):
        monkeypatch.setattr(module, "SETTLE_SECONDS", 60.0)


def placements(
    ports: list[int], tasks: int = 2, timeout: float = 60, attempt: str = "0_uid"
) -> list[Placement]:
    options = LaunchOptions(workers=2, rendezvous_timeout=timeout)
    declared = {"SynPort": ",".join(map(str, ports))}
    made = []
    for index in range(tasks):
        variables = pai_variables(
            {"worker": tasks}, "worker", index, ports=declared, attempt=attempt
        )
        placement = place(variables, options, Devices(0, False))
        made.append(replace(placement, ports=tuple(ports)))  # without http, the same for all tests
    return made


@contextmanager
def meet(places: list[Placement]) -> Iterator[list[Rendezvous]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(rendezvous_of(placement))) for placement in places]


def together(parties: list[Rendezvous]) -> list[int]:
    with ThreadPoolExecutor(len(parties)) as pool:
        return list(pool.map(lambda party: party.gather(), parties))


def in_background(pool: ThreadPoolExecutor, party: Rendezvous) -> "Future[int]":
    return pool.submit(party.gather)


def coordinating_in_background(pool: ThreadPoolExecutor, coordinator: Rendezvous) -> "Future[int]":
    """The coordinator gathers, and listens already."""
    assert isinstance(coordinator, Coordinator)
    future = in_background(pool, coordinator)
    until(lambda: coordinator.listener is not None)
    return future


def a_failure(where: str, code: int = 1, at: float = 0.0, consequence: bool = False) -> Failure:
    return Failure(where, f"{where} broke", code, at, consequence)


def test_three_nodes_meet_on_the_first_port_of_the_masters_own_address() -> None:
    ports = free_ports(2)
    with meet(placements(ports, tasks=3)) as parties:
        assert together(parties) == [ports[0]] * 3
        coordinator = parties[0]
        assert isinstance(coordinator, Coordinator)
        assert coordinator.listener is not None
        assert coordinator.listener.getsockname() == ("127.0.0.1", ports[0])


def test_one_node_meets_nobody() -> None:
    placement = place({}, LaunchOptions(workers=2), Devices(0, False))
    with meet([placement]) as [alone]:
        assert alone.gather() > 0
        assert not alone.poll()
        assert alone.finish()
        assert alone.settle(a_failure("rank 1")).where == "rank 1"


def test_a_silent_foreign_listener_on_the_first_port_confuses_nobody() -> None:
    ports = free_ports(2)
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", ports[0]))
        foreign.listen()
        with meet(placements(ports)) as parties:
            start = time.monotonic()
            assert together(parties) == [ports[1]] * 2
            assert time.monotonic() - start < 40  # it knocks for 5 s


def test_another_job_on_the_first_port_confuses_nobody() -> None:
    ports = free_ports(2)
    others = placements(ports[:1], attempt="0_other")
    with (
        meet(others) as theirs,
        meet(placements(ports)) as ours,
        ThreadPoolExecutor(4) as pool,
    ):
        other_host = coordinating_in_background(pool, theirs[0])
        for future in [in_background(pool, each) for each in ours]:
            assert future.result(60) == ports[1]
        assert not other_host.done()  # our member has not been taken for theirs
        in_background(pool, theirs[1]).result(60)
        assert other_host.result(60) == ports[0]


def test_the_first_task_may_be_the_last_to_come() -> None:
    ports = free_ports(1)
    with meet(placements(ports)) as [coordinator, member], ThreadPoolExecutor(1) as pool:
        early = in_background(pool, member)
        time.sleep(2.5)
        assert not early.done()
        assert coordinator.gather() == ports[0]
        assert early.result(60) == ports[0]


def test_a_guest_that_goes_before_all_are_there_may_come_again() -> None:
    ports = free_ports(1)
    places = placements(ports, tasks=3)
    with meet(places) as [coordinator, first, third], ThreadPoolExecutor(3) as pool:
        coordinating = coordinating_in_background(pool, coordinator)
        with closing(Channel(socket.create_connection(("127.0.0.1", ports[0])))) as leaver:
            leaver.send(protocol="ggs-rendezvous-1", run="0_uid", node=1, layout=places[1].layout)
            assert "welcome" in (leaver.receive(60) or {})
        staying = [in_background(pool, each) for each in (first, third)]
        assert [f.result(60) for f in [coordinating, *staying]] == [ports[0]] * 3


def test_noise_does_not_disturb_the_host() -> None:
    ports = free_ports(1)
    with (
        meet(placements(ports)) as [coordinator, member],
        ThreadPoolExecutor(2) as pool,
        ExitStack() as stack,
    ):
        coordinating = coordinating_in_background(pool, coordinator)
        noises = [
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            os.urandom(3000),
            b"[" * 100_000 + b"\n",
            b"x" * (MAX_LINE + 1),
            b'{"protocol": "ggs-rendezvous-1", "run": "0_uid", "node": "1"}\n',
        ]
        for noise in noises:
            other = stack.enter_context(socket.create_connection(("127.0.0.1", ports[0])))
            with suppress(ConnectionError):  # sent away before it was done
                other.sendall(noise)
        assert member.gather() == ports[0]
        assert coordinating.result(60) == ports[0]


def test_missing_tasks_are_named_when_time_is_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = free_ports(1)
    places = placements(ports, tasks=3, timeout=5)
    passed, said = [0.0], [""]  # nobody's time is up before the second task is in

    def is_said(text: str) -> bool:
        said[0] += capsys.readouterr().err
        return text in said[0]

    with (
        monkeypatch.context() as patched,
        meet(places) as parties,
        ThreadPoolExecutor(2) as pool,
    ):
        clock = SimpleNamespace(monotonic=lambda: passed[0])
        patched.setattr(rendezvous, "time", clock)
        coordinator, member, _ = parties
        coordinating = coordinating_in_background(pool, coordinator)
        waiting = in_background(pool, member)
        assert isinstance(coordinator, Coordinator)
        try:
            until(lambda: 1 in coordinator._members)
            passed[0] = 3.0
            until(lambda: is_said("waiting for task worker-2 at 127.0.0.1"))
            assert not coordinating.done()
            passed[0] = 6.0
            with pytest.raises(RendezvousError, match=r"task worker-2 did not come within 5 s"):
                coordinating.result(60)
            with pytest.raises(RendezvousError, match="worker-2 did not come"):
                waiting.result(60)
        finally:
            passed[0] = 100.0  # whoever still waits gives up
    absent = pytest.raises(RendezvousError, match=r"task worker-0 did not come to 127.0.0.1, port")
    with meet(placements(ports, timeout=0.5)) as [_, alone], absent:
        alone.gather()


def test_tasks_with_other_commands_are_told_so() -> None:
    ports = free_ports(1)
    places = placements(ports)
    places[1] = replace(places[1], workers=(2, 3))
    with meet(places) as parties, ThreadPoolExecutor(2) as pool:
        for future in [in_background(pool, each) for each in parties]:
            with pytest.raises(
                MismatchError, match=r"worker-1 was launched for 2 tasks with workers"
            ) as caught:
                future.result(60)
            assert exit_codes.of_error(caught.value) == exit_codes.NEVER_RETRY


def test_all_ports_taken(capsys: pytest.CaptureFixture[str]) -> None:
    ports = free_ports(2)
    with ExitStack() as stack:
        for port in ports:
            foreign = stack.enter_context(socket.socket())
            foreign.bind(("0.0.0.0", port))
            foreign.listen()
        with meet(placements(ports)) as [coordinator, _], pytest.raises(RendezvousError) as caught:
            coordinator.gather()
    assert f"none of the ports {ports[0]}, {ports[1]} of 127.0.0.1" in str(caught.value)
    assert exit_codes.of_error(caught.value) == exit_codes.RETRY
    assert "Address already in use" in capsys.readouterr().err


def settle_all(parties: list[Rendezvous], failures: list[Failure | None]) -> list[Failure]:
    with ThreadPoolExecutor(len(parties)) as pool:
        return list(
            pool.map(lambda pair: pair[0].settle(pair[1]), zip(parties, failures, strict=True))
        )


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([None, a_failure("b"), None], "b"),
        ([a_failure("a", at=2), a_failure("b", at=1), None], "b"),
        ([a_failure("a", at=2), a_failure("b", at=1, consequence=True), None], "a"),
        ([a_failure("a", at=1), a_failure("b", at=2), a_failure("c", at=3, code=136)], "c"),
    ],
)
def test_all_nodes_learn_the_same_cause(failures: list[Failure | None], cause: str) -> None:
    with meet(placements(free_ports(1), tasks=3)) as parties:
        together(parties)
        assert not any(party.poll() for party in parties)
        assert {found.where for found in settle_all(parties, failures)} == {cause}


def test_a_node_that_vanishes_is_named() -> None:
    with meet(placements(free_ports(1), tasks=3)) as parties:
        together(parties)
        parties[2].close()
        until(parties[0].poll)
        found = settle_all(parties[:2], [None, a_failure("rank 2", consequence=True)])
        assert {str(each) for each in found} == {"ggs: task worker-2: gone without a word"}


def test_a_first_node_that_vanishes_is_named() -> None:
    with meet(placements(free_ports(1))) as [coordinator, member]:
        together([coordinator, member])
        coordinator.close()
        assert member.settle(a_failure("rank 2", consequence=True)).where == "task worker-0"


def test_nodes_wait_for_each_others_success() -> None:
    with meet(placements(free_ports(1))) as [coordinator, member], ThreadPoolExecutor(1) as pool:
        together([coordinator, member])
        done = pool.submit(member.finish)
        time.sleep(0.3)
        assert not done.done()
        assert coordinator.finish()
        assert done.result(60)


def test_success_here_does_not_hide_a_failure_there() -> None:
    def finish(member: Rendezvous) -> str:
        return "succeeded" if member.finish() else member.settle(None).where

    with meet(placements(free_ports(1))) as [coordinator, member], ThreadPoolExecutor(1) as pool:
        together([coordinator, member])
        done = pool.submit(finish, member)
        assert coordinator.settle(a_failure("rank 0")).where == "rank 0"
        assert done.result(60) == "rank 0"


@pytest.mark.parametrize(
    "message",
    [None, [], {}, {"where": "a", "text": "b", "exit_code": "1", "time": 0, "consequence": False}]
    + [
        {"where": "a", "text": "b", "exit_code": code, "time": 0, "consequence": False}
        for code in (0, 256, -9)
    ],
)
def test_a_report_that_is_none(message: object) -> None:
    with pytest.raises(ValueError, match="a failure"):
        Failure.from_message(message)


def test_a_report_survives_its_way() -> None:
    sent = a_failure("rank 1 on task worker-0", 3, 1.5)
    assert Failure.from_message(json.loads(json.dumps(sent.to_message()))) == sent


def raised(error: BaseException) -> Failure:
    try:
        raise error
    except BaseException as caught:
        return failure.of_exception(caught, "rank 0", 0.0)


def test_only_bugs_leave_a_traceback() -> None:
    assert (
        str(raised(ConfigurationError("density=2\nis not\nallowed")))
        == r"ggs: rank 0: density=2\nis not\nallowed"
    )
    bug = raised(RuntimeError("boom"))
    assert bug.text.startswith("Traceback")
    assert bug.text.endswith("RuntimeError: boom")
    assert str(bug).splitlines()[-1] == "ggs: rank 0: RuntimeError: boom"
    long = str(raised(RuntimeError("one\n  two\nthree" + "x" * 10**6))).splitlines()[-1]
    assert long.startswith("ggs: rank 0: ")
    assert len(long) < 600
    assert len(raised(RuntimeError("x" * 10**6)).text) == failure.MAX_TEXT
    assert raised(RuntimeError("Connection closed by peer [127.0.0.1]:1")).consequence
    assert not bug.consequence


def test_death_by_a_signal_gets_a_hint() -> None:
    assert (
        str(failure.of_signal(signal.SIGKILL, "rank 1", 0))
        == "ggs: rank 1: killed by SIGKILL; out of memory, or by hand"
    )
    assert "shmMB" in str(failure.of_signal(signal.SIGBUS, "rank 1", 0))
    assert failure.of_signal(signal.SIGKILL, "rank 1", 0).exit_code == exit_codes.RETRY


def raising(error: BaseException) -> int:
    raise error


def test_guard_makes_one_line_and_a_code_of_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAI_CURRENT_TASK_ROLE_NAME", "worker")
    monkeypatch.setenv("PAI_TASK_ROLE_LIST", "worker")
    assert guard(lambda: raising(ConfigurationError("lr=-1\nis wrong"))) == exit_codes.NEVER_RETRY
    assert guard(lambda: raising(RendezvousError("nobody came"))) == exit_codes.RETRY
    assert guard(lambda: raising(Stopped(signal.SIGTERM))) == exit_codes.RETRY
    assert (
        capsys.readouterr().err
        == "ggs: lr=-1\\nis wrong\nggs: nobody came\nggs: stopped by SIGTERM\n"
    )
    handler = signal.getsignal(signal.SIGTERM)
    assert guard(lambda: os.kill(os.getpid(), signal.SIGTERM) or 0) == exit_codes.RETRY
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_bug_in_the_launcher_ends_with_what_and_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PAI_CURRENT_TASK_ROLE_NAME", raising=False)
    assert guard(lambda: raising(KeyError("lost"))) == exit_codes.RETRY
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "ggs: task local-0:"
    assert last == "ggs: task local-0: KeyError: 'lost'"
    monkeypatch.setenv("PAI_CURRENT_TASK_ROLE_NAME", "worker")
    monkeypatch.setenv("PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX", "3")
    try:
        raise ValueError("first")
    except ValueError as error:
        chained = OSError("several\n  lines\nof text")
        chained.__cause__ = error
    assert guard(lambda: raising(chained)) == exit_codes.RETRY
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "ggs: task worker-3: OSError: several lines of text"


def test_outside_openpai_the_codes_are_a_shells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAI_TASK_ROLE_LIST", raising=False)
    assert guard(lambda: raising(ConfigurationError("lr=-1 is wrong"))) == exit_codes.USAGE
    assert guard(lambda: raising(RendezvousError("nobody came"))) == exit_codes.RETRY
    assert guard(lambda: raising(Stopped(signal.SIGINT))) == 130
    assert guard(lambda: raising(Stopped(signal.SIGTERM))) == 143


ORPHAN = """
import subprocess
print(subprocess.Popen(["sleep", "{}"], start_new_session=True, stdout=-3, stderr=-3).pid)
"""


def test_what_a_child_leaves_behind_is_waited_for_and_ended() -> None:
    before = subprocess.Popen(["sleep", "300"])
    processes = ProcessTree()
    try:
        for seconds, wait in [("0.5", 10.0), ("300", 0.2)]:
            output = subprocess.run(
                [sys.executable, "-c", ORPHAN.format(seconds)], capture_output=True, check=True
            )
            processes.wait(wait)
            assert Path(f"/proc/{int(output.stdout)}").exists() == (seconds == "300")
        processes.end()
        assert not Path(f"/proc/{int(output.stdout)}").exists()
        assert before.poll() is None  # it was there before: a stranger
    finally:
        processes.end()
        before.kill()
        before.wait()


def test_split_of_a_scripts_command_line(tmp_path: Path) -> None:
    path = tmp_path / "my train.py"
    path.touch()
    line = [
        "--workers",
        "2",
        "--roles",
        "a,b",
        "--script",
        str(path),
        "--workers",
        "9",
        "--script",
        "x",
    ]
    options, found, rest = script.split(line) or pytest.fail("no script")
    assert (options.workers, options.roles, found) == (2, ("a", "b"), str(path))
    assert rest == ("--workers", "9", "--script", "x")
    assert script.split(["--model", "lenet5"]) is None
    assert (script.split([f"--script={path}"]) or pytest.fail("no script"))[1:] == (str(path), ())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--script"], "needs a file"),
        (["--script", "absent.py"], "'absent.py' is not a file"),
        (["--lr", "1", "--script", __file__], "unrecognized arguments: --lr 1"),
        (["--workers", "two", "--script", __file__], "invalid int value: 'two'"),
        (["--workers", "0", "--script", __file__], "workers=0 is not between"),
        (["--backend", "mpi", "--script", __file__], "backend='mpi' is not one of"),
        (["--rendezvous-timeout", "-1", "--script", __file__], "rendezvous_timeout=-1.0"),
    ],
)
def test_a_wrong_script_command_line(line: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        script.split(line)
    assert message in str(caught.value)


def test_waiting_can_be_interrupted() -> None:
    """A signal ends a wait at once: none of the waits is inside C++."""
    [_, placement] = placements(free_ports(1), timeout=200)
    timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGTERM))

    def wait() -> int:
        timer.start()  # not before the guard is up, or the signal would end the tests
        return member.gather()

    start = time.monotonic()
    with closing(rendezvous_of(placement)) as member:
        assert guard(wait) == 128 + signal.SIGTERM
    assert time.monotonic() - start < 100


@pytest.mark.parametrize("late", [0, 1])
def test_a_node_that_does_not_end_is_not_waited_for_without_end(late: int) -> None:
    """Its workers are stopped, one way or the other, and all nodes learn why."""
    places = [replace(placement, finish_timeout=0.5) for placement in placements(free_ports(1))]

    def ends(party: Rendezvous) -> Failure:
        assert not party.finish()
        return party.settle(None)

    def runs(party: Rendezvous) -> Failure:
        while not party.poll():  # as its agent does while its workers run
            time.sleep(0.05)
        return party.settle(None)

    with meet(places) as parties, ThreadPoolExecutor(2) as pool:
        together(parties)
        causes = [pool.submit(ends, parties[1 - late]), pool.submit(runs, parties[late])]
        for cause in causes:
            assert cause.result(30).where == f"task {places[0].tasks[late]}"
            assert cause.result().text.startswith("still runs 0.5 s after others have ended")

"""The pool of worker processes itself: one failure stays one, and says what happened."""

import os
import re
import signal
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from tests.worker_pool import WorkerDied, WorkerFailure, WorkerPool


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """A pool of its own, which these tests may harm."""
    found = WorkerPool()
    yield found
    found.close()


def total(rank: int, size: int, number: float) -> float:
    value = torch.tensor(number * (rank + 1))
    dist.all_reduce(value)
    return float(value)


def harmed(rank: int, size: int, how: str) -> None:
    if rank == 1:
        if how == "exit":
            os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
    total(rank, size, 1.0)


class Rung(Exception):
    """A test's time is up."""


def ring(*_: object) -> None:
    raise Rung


def slow(rank: int, size: int) -> str:
    time.sleep(600)
    return "the answer of another test"


def test_a_process_that_dies_says_how_and_harms_no_other_test(pool: WorkerPool) -> None:
    with pytest.raises(WorkerDied, match=r"^rank 1 of 2 exited with 7 in harmed"):
        pool.run(2, harmed, "exit")
    assert pool.run(2, total, 1.0) == [3.0, 3.0]
    with pytest.raises(WorkerDied, match=r"^rank 1 of 2 was killed by SIGKILL in harmed"):
        pool.run(2, harmed, "kill")
    assert pool.run(2, total, 2.0) == [6.0, 6.0]


def test_a_process_that_dies_with_nothing_to_do_is_told_with_what_it_did_before(
    pool: WorkerPool,
) -> None:
    pool.run(2, total, 1.0)
    process = pool._workers[1].process
    process.kill()
    process.join()
    words = r"^an idle worker process was killed by SIGKILL; before, it ran total$"
    with pytest.raises(WorkerDied, match=words):
        pool.run(2, total, 1.0)
    assert pool.run(2, total, 2.0) == [6.0, 6.0]


def test_an_interrupted_test_leaves_no_answer_for_the_next(pool: WorkerPool) -> None:
    """As when a test's time is up while its workers still compute."""
    pool.start(2)
    before = signal.signal(signal.SIGUSR2, ring)
    try:
        with pytest.raises(Rung):
            pool.run(2, interrupts_the_test, os.getpid())
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert pool.run(2, total, 1.0) == [3.0, 3.0]


def interrupts_the_test(rank: int, size: int, test: int) -> str:
    if rank == 0:
        os.kill(test, signal.SIGUSR2)
    return slow(rank, size)


def test_ranks_that_hang_are_named_with_where_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    pool = WorkerPool(seconds=1)
    try:
        pool.start(2)
        with pytest.raises(TimeoutError, match=r"rank 0, 1 of 2 gave no answer in 1 s from slow"):
            pool.run(2, slow)
        said = capfd.readouterr().err
        assert len(re.findall(r"worker_pool.py\", line \d+ in _serve$", said, re.M)) == 2, said
        assert pool._workers == []
    finally:
        pool.close()


def ends_at_once(rank: int, size: int, group: bool) -> int:
    if group:
        dist.new_group()
    return rank


@pytest.mark.parametrize("group", [False, True])
def test_a_rank_that_is_done_leaves_no_other_that_still_connects(
    pool: WorkerPool, group: bool
) -> None:
    for _ in range(25):
        assert pool.run(3, ends_at_once, group) == [0, 1, 2]


def test_an_error_of_one_rank_costs_no_process(pool: WorkerPool) -> None:
    pool.run(2, total, 1.0)
    processes = [worker.process.pid for worker in pool._workers]
    with pytest.raises(WorkerFailure, match="--- rank 1") as failure:
        pool.run(2, fails_on_rank_1)
    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    assert pool.run(2, total, 1.0) == [3.0, 3.0]
    assert [worker.process.pid for worker in pool._workers] == processes


def fails_on_rank_1(rank: int, size: int) -> float:
    return 1 / (1 - rank)

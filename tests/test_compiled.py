"""Compiled kernels: they work where nothing can be cached, in threads, and after a fork."""

import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from numba.core import caching

from ggs.compiled import _openmp_region, compiled, run_threads, threads_for


@pytest.fixture(autouse=True, params=["torch's threads", "own threads"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test with both kinds; builds of torch without GNU's or LLVM's OpenMP have one."""
    if request.param == "own threads":
        monkeypatch.setattr("ggs.compiled._region", None)
    elif _openmp_region() is None:
        pytest.skip("this torch has no OpenMP to share")
    return str(request.param)


def double(values: np.ndarray, first: int, last: int) -> int:
    for i in range(first, last):
        values[i] *= 2
    return last - first


def test_without_a_place_for_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a read-only installation and a user without a home directory."""
    monkeypatch.setattr(caching.CodeLibraryCacheImpl, "_locator_classes", [])
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    values = np.ones(3)
    assert compiled(double)(values, 0, 2) == 2
    assert values.tolist() == [2, 2, 1]


def test_results_come_in_the_order_of_the_calls() -> None:
    values = np.ones(100)
    calls = [(values, 10 * i, 10 * i + i) for i in range(10)]
    assert run_threads(double, calls) == list(range(10))
    assert values.sum() == 100 + 45
    assert run_threads(double, []) == []


def test_a_threads_error_is_the_callers() -> None:
    def fail(number: int) -> int:
        if number == 0:
            raise ZeroDivisionError
        return number

    with pytest.raises(ZeroDivisionError):
        run_threads(fail, [(0,), (1,)])


def test_no_signal_is_lost(threads: str) -> None:
    """Python's handler may run, and raise, at the first instruction of a thread's share."""
    if threads != "torch's threads":
        pytest.skip("Python's own pool does not stand exceptions at any instruction")

    class Rung(Exception):
        pass

    raised = caught = 0

    def ring(*_: object) -> None:
        nonlocal raised
        raised += 1
        raise Rung

    before = signal.signal(signal.SIGVTALRM, ring)
    end = time.monotonic() + 3
    gc.disable()  # what a handler raises inside a callback of the collector, as Hypothesis's, is lost
    try:
        while time.monotonic() < end and raised < 150:
            try:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.001)
                while raised == caught:
                    run_threads(sum, [(range(500),)] * 2)
            except Rung:
                caught += 1
            assert caught == raised
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        gc.enable()
    assert raised


def test_small_work_stays_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert [threads_for(work, 100) for work in (0, 99, 199, 200, 10_000)] == [1, 1, 1, 2, 8]
    seen = run_threads(threading.get_ident, [()])
    assert seen == [threading.get_ident()]


def test_threads_are_torchs_own(threads: str) -> None:
    """More threads than torch's would only share its cores: between operators these spin."""
    torch.set_num_threads(2)
    torch.ones(1 << 20).add_(1)
    before = set(os.listdir("/proc/self/task"))
    run_threads(double, [(np.ones(1), 0, 1)] * 2)
    if threads == "torch's threads":
        assert set(os.listdir("/proc/self/task")) <= before  # another test's may end meanwhile


def test_calls_from_several_threads_at_once() -> None:
    values = np.ones((4, 1000))

    def repeat(row: int) -> list[int]:
        return [sum(run_threads(double, [(values[row], 0, 500), (values[row], 500, 1000)]))
                for _ in range(20)]  # fmt: skip

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(repeat, range(4))) == [[1000] * 20] * 4
    assert (values == 2.0**20).all()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork() -> None:
    """A forked data loader inherits the pool's object but none of its threads."""
    run_threads(double, [(np.ones(1), 0, 1)] * 3)
    child = os.fork()
    if child == 0:
        done = run_threads(double, [(np.ones(1), 0, 1)] * 3) == [1, 1, 1]
        os._exit(0 if done else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

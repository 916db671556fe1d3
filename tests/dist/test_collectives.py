"""Subgroups are what the group that they come from is: its backend, its patience."""

import inspect
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ggs
from ggs.dist.process_group import ProcessGroupCollectives
from ggs.exchange.base import Update
from ggs.exchange.hierarchical import Hierarchical
from tests.worker_pool import WorkerPool

SECONDS = 77
"""The group's timeout, which nobody waits for; the pool's own is 120 s, torch's default 30 minutes."""
SHORT = 10
"""Where it is waited for. Longer than a busy machine leaves a process without a core."""


def _parent(backend: str | None = None, seconds: int = SECONDS) -> dist.ProcessGroup:
    group = dist.new_group(timeout=timedelta(seconds=seconds), backend=backend)
    assert isinstance(group, dist.ProcessGroup)
    return group


def _kind(group: dist.ProcessGroup | None) -> tuple[str, timedelta]:
    assert group is not None
    backend = group._get_backend(torch.device("cpu"))
    return dist.get_backend_config(group), backend.options._timeout


def _kinds(rank: int, size: int, backend: str | None) -> tuple[object, object]:
    collectives = ProcessGroupCollectives(_parent(backend))
    first = rank // 2 * 2
    subgroup = collectives.subgroup(range(first, first + 2), counted=True)
    assert subgroup.all_gather(torch.tensor([rank])).view(-1).tolist() == [first, first + 1]
    return _kind(collectives.group), _kind(subgroup.group)


@pytest.mark.parametrize("backend", [None, "gloo", "cpu:gloo"])
def test_a_subgroup_has_the_backend_and_the_timeout_of_its_group(
    workers: WorkerPool, backend: str | None
) -> None:
    for parent, child in workers.run(4, _kinds, backend):
        assert child == parent
        assert child[1] == timedelta(seconds=SECONDS)


def _construct(rank: int, size: int) -> tuple[list[int], list[float]]:
    """Threads after 1 and 5 constructions, and what a step gives after each."""
    threads, sums = [], []
    for _ in range(5):
        model = nn.Linear(20, 20)
        nn.init.ones_(model.weight)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = ggs.GGS(sgd, model, 1.0, exchange="hierarchical", workers_per_node=2)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, float(rank))
        optimizer.step()
        sums.append(float(model.weight.detach().sum()))
        threads.append(len(os.listdir("/proc/self/task")))
    return threads, sums


def test_another_optimizer_makes_no_more_groups(workers: WorkerPool) -> None:
    for _ in range(2):  # the second time in a new world, whose groups are others
        for threads, sums in workers.run(4, _construct):
            assert max(threads) == threads[0]  # some of before may end in between
            assert sums == [pytest.approx(400 * (1 - 0.1 * 1.5))] * 5


def _destroyed(rank: int, size: int) -> list[bool]:
    collectives = ProcessGroupCollectives(_parent())
    subgroups = [collectives.subgroup(range(size), counted=False) for _ in range(2)]
    subgroups[1].all_gather(torch.zeros(1))  # nobody may leave while another still connects
    made = [subgroup.group for subgroup in subgroups]
    assert made[1] is not None
    dist.destroy_process_group(made[1])
    after = collectives.subgroup(range(size), counted=False)
    assert after.all_gather(torch.tensor([rank])).view(-1).tolist() == list(range(size))
    return [made[0] is made[1], after.group is made[1]]


@pytest.mark.skipif(
    "group_count" not in inspect.getsource(dist.distributed_c10d._hash_ranks_to_str),
    reason="this torch gives a group that is made again the old one's name, and with it its stale addresses",
)
def test_a_group_that_was_destroyed_is_made_anew(workers: WorkerPool) -> None:
    assert workers.run(2, _destroyed) == [[True, False]] * 2


def _hierarchical(group: dist.ProcessGroup | None) -> ggs.GGS:
    """An optimizer on two nodes of two, after its first step."""
    model = nn.Linear(50, 50)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = ggs.GGS(
        sgd, model, 0.1, exchange="hierarchical", workers_per_node=2, process_group=group
    )
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


def _stop_in_the_middle(rank: int, size: int, given_up: Path) -> float:
    """Rank 3 stops after it has exchanged with its peer, before it passes on, until its node has given it
    up; how long that waited."""
    _hierarchical(None)  # the first step compiles, which may take longer than the short timeout
    optimizer = _hierarchical(_parent(seconds=SHORT))
    exchange = optimizer._exchange
    assert isinstance(exchange, Hierarchical)
    pass_on, start = exchange._pass_on, [0.0]

    def pass_on_late(update: Update | None) -> list[Update] | None:
        start[0] = time.monotonic()
        while rank == 3 and not given_up.exists() and time.monotonic() < start[0] + 5 * SHORT:
            time.sleep(0.05)
        return pass_on(update)

    exchange._pass_on = pass_on_late  # type: ignore[method-assign]
    try:
        optimizer.step()
    except RuntimeError:
        seconds = time.monotonic() - start[0]
        if rank == 2:
            given_up.touch()
        return seconds
    assert rank != 2
    return 0.0


def test_a_peer_that_stops_in_a_hierarchical_exchange_is_given_up_in_time(
    workers: WorkerPool, tmp_path: Path
) -> None:
    seconds = workers.run(4, _stop_in_the_middle, tmp_path / "given up")
    assert 0.9 * SHORT < seconds[2] < 5 * SHORT, seconds

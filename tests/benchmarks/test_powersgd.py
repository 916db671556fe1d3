"""PowerSGD against torch's own DDP hook, and what it keeps and sends."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ggs
from tests.benchmarks.rival_training import WORKERS, gradients, train
from tests.worker_pool import WorkerPool

Import = Callable[[str], ModuleType]
STEPS, WARMUP = 8, 2


def _network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(30, 24), nn.Tanh(), nn.Linear(24, 17), nn.Linear(17, 8)).double()


def _backward(network: nn.Module, step: int, rank: int) -> None:
    network.zero_grad()
    generator = torch.Generator().manual_seed(10 * step + rank)
    x = torch.randn(5, 30, generator=generator, dtype=torch.float64)
    network(x).square().mean().backward()


def _with_the_hook(rank: int, columns: int) -> tuple[nn.Module, list[nn.Parameter], list[Tensor]]:
    """The model that torch trains, its parameters in the hook's order, and the weights of each step."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torchs

    network = _network()
    ddp = nn.parallel.DistributedDataParallel(network)
    state = torchs.PowerSGDState(
        process_group=None, matrix_approximation_rank=columns, start_powerSGD_iter=WARMUP
    )
    order: list[nn.Parameter] = []

    def hook(state: torchs.PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        order[:] = bucket.parameters()
        return torchs.powerSGD_hook(state, bucket)

    ddp.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for step in range(STEPS):
        _backward(ddp, step, rank)
        optimizer.step()
        seen.append(nn.utils.parameters_to_vector(network.parameters()).detach())
    return network, order, seen


def _against_the_hook(rank: int, size: int, benchmarks: str, columns: int) -> list[float]:
    """The largest difference of a weight after each step."""
    sys.path.insert(0, benchmarks)
    try:
        from rivals.powersgd import PowerSGD
    finally:
        sys.path.remove(benchmarks)
    theirs, order, expected = _with_the_hook(rank, columns)
    network = _network()
    optimizer = PowerSGD(
        torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9),
        network,
        rank=columns,
        warmup_steps=WARMUP,
    )
    # The same first Q as torch draws, matrix by matrix in the order of its bucket.
    names = {p: name for name, p in theirs.named_parameters()}
    ours = dict(network.named_parameters())
    places = {p: place for place, p in enumerate(optimizer.matrices)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(np.random.RandomState(0).randint(1_000_000_000))
        for parameter in order:
            if ours[names[parameter]] in places:
                right = optimizer.right[places[ours[names[parameter]]]]
                right.copy_(torch.randn(1, *right.shape, dtype=right.dtype)[0])
    differences = []
    for step in range(STEPS):
        _backward(network, step, rank)
        optimizer.step()
        reached = nn.utils.parameters_to_vector(network.parameters()).detach()
        differences.append(float((reached - expected[step]).abs().max()))
    return differences


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_every_step_is_that_of_torchs_hook(workers: WorkerPool, root: Path, columns: int) -> None:
    for differences in workers.run(2, _against_the_hook, str(root / "benchmarks"), columns):
        assert max(differences) < 1e-12


def test_what_is_left_and_what_is_sent_are_the_gradient(benchmark: Import) -> None:
    powersgd = benchmark("rivals.powersgd")

    def build(network: nn.Module, worker: Any) -> Any:
        sgd = torch.optim.SGD(network.parameters(), lr=1.0)
        return powersgd.PowerSGD(sgd, network, rank=1, process_group=worker)

    results = train(build, 4, lambda optimizer: optimizer.error[0].clone())
    sent = sum(results[0][0][step][:48] - results[0][0][step + 1][:48] for step in range(4))
    asked = sum(gradients(step, rank)[0] for step in range(4) for rank in range(WORKERS))
    left = sum(result[1][-1] for result in results)
    torch.testing.assert_close(WORKERS * sent.view(8, 6) + left, asked, rtol=1e-4, atol=1e-4)


def test_only_factors_and_vectors_travel(benchmark: Import) -> None:
    powersgd = benchmark("rivals.powersgd")

    def build(network: nn.Module, worker: Any) -> Any:
        sgd = torch.optim.SGD(network.parameters(), lr=1.0)
        return powersgd.PowerSGD(sgd, network, rank=1, warmup_steps=1, process_group=worker)

    def said(optimizer: Any) -> tuple[int, int]:
        return optimizer.statistics.bytes_sent, sum(optimizer.agreement_bytes)

    for _, bytes_sent in train(build, 2, said):
        ring = 2 * (WORKERS - 1) / WORKERS
        agreement = int(ring * bytes_sent[0][1])
        assert bytes_sent[0][0] == int(ring * 4 * (48 + 8)) + agreement
        assert bytes_sent[1][0] == sum(int(ring * 4 * part) for part in (8, 8, 6)) + agreement


def test_whole_rank_is_dense_training(benchmark: Import) -> None:
    """A matrix that its factors would not make smaller travels whole."""
    powersgd = benchmark("rivals.powersgd")

    def build(network: nn.Module, worker: Any) -> Any:
        adam = torch.optim.Adam(network.parameters(), lr=0.1)
        return powersgd.PowerSGD(adam, network, rank=6, process_group=worker)

    def dense(network: nn.Module, worker: Any) -> Any:
        return ggs.Dense(
            torch.optim.Adam(network.parameters(), lr=0.1), network, process_group=worker
        )

    for ours, theirs in zip(train(build, 3), train(dense, 3), strict=True):
        torch.testing.assert_close(ours[0][-1], theirs[0][-1])

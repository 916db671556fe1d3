"""Every exchange: bit-identical replicas, nothing lost, exact resume, every byte counted."""

import copy
import functools
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar, cast

import pytest
import torch
from torch import nn

import ggs
from ggs.exchange import allgather, auto, split
from tests.models import backward, build
from tests.test_optimizer import non_batchnorm
from tests.worker_pool import WorkerPool

F = TypeVar("F", bound=Callable[..., Any])

CASES = [
    *(("allgather", size) for size in (2, 3, 4, 5)),
    *(("split", size) for size in (2, 3, 4, 5)),
    ("auto", 4),
    ("hierarchical 2", 2),
    ("hierarchical 2", 4),
    ("hierarchical 2 split", 4),
    ("hierarchical 3", 6),
    ("hierarchical 2 split", 6),
]
"""Exchange, workers per node and, for tests, the exchange between the nodes; number of workers."""
every_exchange = pytest.mark.parametrize(("exchange", "size"), CASES)


def make(
    optimizer: torch.optim.Optimizer, model: nn.Module, exchange: str, **options: Any
) -> ggs.GGS:
    """A GGS that exchanges between nodes as ``exchange`` says; see ``in_small_pieces``."""
    name, *rest = exchange.split()
    if rest:
        options["workers_per_node"] = int(rest[0])
    auto.cheapest_flat = _original if rest[1:] != ["split"] else _always_split
    return ggs.GGS(optimizer, model, exchange=name, **options)


_original = auto.cheapest_flat


def in_small_pieces(function: F) -> F:
    """Exchange even what is small in several pieces. The worker processes serve other tests after."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        kept, allgather.PIECE_BYTES = allgather.PIECE_BYTES, 150
        try:
            return function(*arguments)
        finally:
            allgather.PIECE_BYTES, auto.cheapest_flat = kept, _original

    return cast(F, call)


def _always_split(numel: int, count: int, size: int, values_format: str, *rest: Any) -> Any:
    return "split", auto.split_cost(numel, count, size, values_format)


def adamw(model: nn.Module, exchange: str, **options: Any) -> ggs.GGS:
    options = {"density": 0.05, "warmup_steps": 6, **options}
    return make(torch.optim.AdamW(model.parameters(), lr=0.01), model, exchange, **options)


@in_small_pieces
def _replicas(rank: int, size: int, exchange: str, cases: list[dict[str, Any]]) -> list[Any]:
    found = []
    for case in cases:
        model = build(case.pop("model"), case.pop("dtype", torch.float32), seed=1 + rank)
        optimizer = adamw(model, exchange, **case)
        history = []
        for step in range(12):
            backward(model, step, rank)
            optimizer.step()
            history.append(non_batchnorm(model))
        found.append(history)
    return found


@every_exchange
def test_replicas_are_bit_identical(workers: WorkerPool, exchange: str, size: int) -> None:
    cases: list[dict[str, Any]] = [
        {"model": "plain", "dense_below": 6},
        {"model": "batchnorm", "values": "int4"},
        {"model": "plain", "scope": "tensor", "values": "bf16"},
        {"model": "non_contiguous", "dtype": torch.float64, "values": "fp64"},
        {"model": "channels_last", "dtype": torch.bfloat16},
        {"model": "tied", "values": "sign", "density": 0.001},
    ]
    results = workers.run(size, _replicas, exchange, cases)
    for case, histories in zip(cases, zip(*results, strict=True), strict=True):
        for other in histories[1:]:
            for step, (first, second) in enumerate(zip(histories[0], other, strict=True)):
                for name in first:
                    assert torch.equal(first[name], second[name]), (case, step, name)
        start, end = histories[0][0], histories[0][-1]
        assert any(not torch.equal(start[name], end[name]) for name in start), case


@in_small_pieces
def _conserve(rank: int, size: int, exchange: str, values: str, scope: str) -> dict[str, Any]:
    """SGD on given integer gradients: its updates do not depend on the weights, and sum exactly."""
    model = nn.Sequential(nn.Linear(40, 9, bias=False), nn.Linear(9, 7)).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    sgd = torch.optim.SGD(model.parameters(), lr=2.0**-5)
    optimizer = make(sgd, model, exchange, density=0.03, warmup_steps=8,
                     values=values, scope=scope, dense_below=8)  # fmt: skip
    total = [torch.zeros_like(p) for p in model.parameters()]
    generator = torch.Generator().manual_seed(rank)
    for _ in range(40):
        for parameter, updates in zip(model.parameters(), total, strict=True):
            gradient = torch.randint(-8, 9, parameter.shape, generator=generator).double()
            parameter.grad = gradient
            updates -= gradient * 2.0**-5
        optimizer.step()
    state = optimizer.state_dict()["ggs"]
    residual = [state["residual"][name].reshape(-1) for name, _ in model.named_parameters()]
    return {
        "arrived": torch.cat([p.detach().reshape(-1) for p in model.parameters()]),
        "updates": torch.cat([t.reshape(-1) for t in total]),
        "residual": state["residual_weight"] * torch.cat(residual),
    }


@every_exchange
@pytest.mark.parametrize(
    ("values", "scope"), [("fp64", "global"), ("fp32", "tensor"), ("int8", "global")]
)
def test_nothing_is_lost(
    workers: WorkerPool, exchange: str, size: int, values: str, scope: str
) -> None:
    """Mean of all updates = what arrived in the weights + mean of what the residuals still hold."""
    results = workers.run(size, _conserve, exchange, values, scope)
    residual = torch.stack([result["residual"] for result in results]).mean(0)
    updates = torch.stack([result["updates"] for result in results]).mean(0)
    torch.testing.assert_close(results[0]["arrived"] + residual, updates, rtol=1e-12, atol=1e-13)
    assert residual.abs().max() > 0


@in_small_pieces
def _at_density_1(rank: int, size: int, exchange: str) -> torch.Tensor:
    model = build("plain", torch.float64)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if exchange == "dense":
        optimizer: torch.optim.Optimizer = ggs.Dense(sgd, model)
    else:
        optimizer = make(sgd, model, exchange, density=1.0, values="fp64")
    for step in range(8):
        backward(model, step, rank)
        optimizer.step()
        if exchange != "dense":
            assert not optimizer.residual.any()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@every_exchange
def test_sgd_at_density_1_is_dense_training(workers: WorkerPool, exchange: str, size: int) -> None:
    dense = workers.run(size, _at_density_1, "dense")[0]
    for found in workers.run(size, _at_density_1, exchange):
        torch.testing.assert_close(found, dense, rtol=1e-12, atol=1e-14)


@in_small_pieces
def _resume(rank: int, size: int, exchange: str) -> bool:
    def run(model: nn.Module, optimizer: ggs.GGS, start: int, stop: int) -> None:
        for step in range(start, stop):
            backward(model, step, rank)
            if step == 6 and rank == 1:
                next(p for p in model.parameters() if p.grad is not None).grad.fill_(float("nan"))
            optimizer.step()
            assert optimizer.statistics.skipped == (step == 6)

    model = build("batchnorm")
    optimizer = adamw(model, exchange, values="int8")
    run(model, optimizer, 0, 9)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    run(model, optimizer, 9, 20)
    resumed = build("batchnorm")
    second = adamw(resumed, exchange, values="int8")
    resumed.load_state_dict(saved[0])
    second.load_state_dict(saved[1])
    run(resumed, second, 9, 20)
    return torch.equal(optimizer.residual, second.residual) and all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), resumed.state_dict().values(), strict=True)
    )


@every_exchange
def test_resume_is_the_uninterrupted_run(workers: WorkerPool, exchange: str, size: int) -> None:
    assert all(workers.run(size, _resume, exchange))


@pytest.mark.parametrize("values", ["fp32", "int4"])
@pytest.mark.parametrize("size", [2, 3, 7, 16, 100, 1024])
@pytest.mark.parametrize("count", [1, 25_557, 255_570, 25_557_032])
def test_ranges_cover_everything_within_the_budget(size: int, count: int, values: str) -> None:
    numel = 25_557_032
    found = split.ranges((0, numel), (count,), size, values, None)
    assert found.bounds[0] == 0
    assert found.bounds[-1] == numel
    assert sum(sum(parts) for parts in found.first) == count
    for rank, (a, b) in enumerate(pairwise(found.bounds)):
        assert sum(found.first[rank]) <= b - a
        assert sum(found.first[rank]) <= 2 * sum(found.second[rank]) <= 2 * (b - a)
        assert found.offsets[rank][-1] == b - a
    if count == numel:
        assert sum(sum(parts) for parts in found.second) == numel
    if count > size:  # else the messages are hardly more than their headers
        whole = split.message_size(numel, count, values)
        assert split.bytes_sent(found, values) <= 3.2 * whole


def _bytes(rank: int, size: int, exchange: str) -> tuple[int, int, list[str]]:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("ggs")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        model = nn.Linear(200, 100, bias=False)
        optimizer = ggs.GGS(torch.optim.SGD(model.parameters()), model, 0.01, exchange=exchange)
        for step in range(4):  # the last one, step 3, moves no ranges
            model.weight.grad = torch.randn(100, 200) / (1 + step)
            optimizer.step()
    finally:
        logger.removeHandler(handler)
    return optimizer.statistics.bytes_sent, optimizer.statistics.bytes_received, messages


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("exchange", ["allgather", "split", "auto"])
def test_every_byte_is_counted(workers: WorkerPool, exchange: str, size: int) -> None:
    numel, count = 20_000, 200
    # One byte for finite gradients, one for the only tensor, eight for equal settings.
    vote = 2 * 10 * (size - 1) // size
    results = workers.run(size, _bytes, exchange)
    sent, received = ([result[i] - vote for result in results] for i in (0, 1))
    assert sum(sent) == sum(received)
    if exchange == "split":
        message = split.message_size(numel, count, "fp32")
        assert max(sent) <= 3.2 * message
        assert min(sent) > (size - 1) / size * message
    else:
        assert sent == [(size - 1) * split.message_size(numel, count, "fp32")] * size
    logs = [result[2] for result in results]
    assert logs[1:] == [[]] * (size - 1)
    if exchange == "auto":
        assert logs[0] == [
            f"exchange: allgather, for 200 of 20,000 elements on {size} workers; "
            f"sends {sent[0] / 1e6:.3f} MB a worker and step"
        ]


def test_gathered_pieces_stay_within_their_memory_for_any_number_of_workers() -> None:
    for size in (2, 4, 100, 1024, 10_000):
        for count in (61_101, 6_110_084, 61_100_840):
            cuts = allgather.cuts(61_100_840, count, size, "fp32")
            assert cuts[0] == 0
            assert cuts[-1] == count
            longest = max(b - a for a, b in pairwise(cuts))
            numel = allgather.piece_numel(61_100_840, count, longest)
            gathered = size * allgather.message_size(numel, longest, "fp32")
            assert gathered <= 1.5 * allgather.GATHERED_BYTES

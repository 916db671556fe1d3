"""Exchanges before their time, and the last one: what was not sent yet is delivered, or dropped."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ggs
from ggs.dist import lockstep
from ggs.errors import ConfigurationError, MismatchError, NonFiniteError
from tests.models import backward, build
from tests.optim.test_ggs import non_batchnorm
from tests.worker_pool import WorkerPool

Call = Callable[[ggs.GGS], None]


def _trained(rank: int, steps: int, group: Any = None, **options: Any) -> tuple[nn.Module, ggs.GGS]:
    model = build("batchnorm", options.pop("dtype", torch.float64), seed=1 + rank)
    decay = options.pop("weight_decay", 0.1)
    inner = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=decay)
    optimizer = ggs.GGS(inner, model, 0.05, process_group=group, **options)
    for step in range(steps):
        backward(model, step, rank)
        optimizer.step()
    return model, optimizer


def _undelivered(optimizer: ggs.GGS) -> Tensor:
    """This worker's residual and its local steps since the last exchange, in flat order."""
    local = optimizer.local_steps
    pending = local.sum if local else torch.zeros_like(optimizer.residual)
    return (optimizer.residual + pending).clone()


def _flat(optimizer: ggs.GGS) -> Tensor:
    """The shared weights in flat order."""
    flat = torch.zeros_like(optimizer.residual)
    for slot in optimizer.flat.slots:
        slot.view(flat).copy_(optimizer.shared_weights()[slot.name])
    return flat


def _ended(rank: int, size: int, options: dict[str, Any], steps: int, end: str, argument: Any,
           group: Any = None) -> dict[str, Any]:  # fmt: skip
    """Train, end it, and see whether anything moves the weights afterwards."""
    model, optimizer = _trained(rank, steps, group, **options)
    before, undelivered = _flat(optimizer), _undelivered(optimizer)
    getattr(optimizer, end)(*argument)
    ended = optimizer.statistics
    after, left = _flat(optimizer), optimizer.residual.clone()
    for group_ in optimizer.param_groups:
        group_["lr"] = 0.0
    optimizer.zero_grad()
    for _ in range(optimizer.every):
        optimizer.step()
    return {
        "before": before,
        "undelivered": undelivered,
        "after": after,
        "left": left,
        "later": _flat(optimizer),
        "statistics": ended,
        "weights": non_batchnorm(model),
    }


CASES = [
    {"values": "fp64"},
    {"values": "sign", "every": 4, "dense_below": 50},
    {"values": "int8", "exchange": "split"},
    {"values": "fp64", "exchange": "hierarchical", "workers_per_node": 2},
]


@pytest.mark.parametrize("options", CASES)
def test_draining_delivers_everything_once(workers: WorkerPool, options: dict[str, Any]) -> None:
    arguments = (options, 10, "drain", ())
    results = workers.run(4, _ended, *arguments)
    sources = 2 if "workers_per_node" in options else 4
    lost = torch.stack([result["undelivered"] for result in results]).sum(0) / sources
    decay = 0.999**2 if "every" in options else 1.0  # of the two local steps
    for result in results:
        assert torch.equal(result["after"], results[0]["after"])
        torch.testing.assert_close(
            result["after"], decay * result["before"] + lost, rtol=1e-12, atol=1e-14
        )
        assert not result["left"].any()
        assert torch.equal(result["later"], result["after"])  # nothing moves any more
        numel = len(result["left"])
        assert result["statistics"].bytes_sent >= 2 * numel * 8 * 3 // 4
        assert result["statistics"].bytes_sent < 2 * numel * 8 * 3 // 4 + 50
        assert (result["statistics"].step, result["statistics"].selected) == (10, numel)
    assert lost.abs().max() > 1e-3
    if sources == 4:
        threads = lockstep.run(4, lambda w: _ended(w.rank, 4, *arguments, group=w))
        for thread, result in zip(threads, results, strict=True):
            assert torch.equal(thread["after"], result["after"])
            assert thread["statistics"] == result["statistics"]


@pytest.mark.parametrize("options", CASES[:3])
def test_draining_in_steps_sends_the_largest_first(options: dict[str, Any]) -> None:
    def ended(steps: int) -> list[dict[str, Any]]:
        return lockstep.run(2, lambda w: _ended(w.rank, 2, options, 10, "drain", (steps,), group=w))

    two, many = ended(2), ended(60)
    for results in (two, many):
        lost = torch.stack([r["undelivered"] - r["left"] for r in results]).mean(0)
        decay = 0.999**2 if "every" in options else 1.0
        for result in results:
            assert torch.equal(result["after"], results[0]["after"])
            torch.testing.assert_close(
                result["after"], decay * result["before"] + lost, rtol=1e-12, atol=1e-14
            )
    assert two[0]["left"].any()
    assert two[0]["statistics"].bytes_sent < many[0]["statistics"].bytes_sent
    if options["values"] == "fp64":  # nothing is rounded, so that all of it arrives
        assert not many[0]["left"].any()
        assert many[0]["statistics"].selected < 25 * two[0]["statistics"].selected


def test_a_dropped_residual_moves_nothing_any_more(workers: WorkerPool) -> None:
    for options in ({}, {"every": 5}):
        results = workers.run(2, _ended, options, 10, "drop_residual", ())
        for result in results:
            assert torch.equal(result["after"], result["before"])
            assert torch.equal(result["later"], result["before"])
            assert result["undelivered"].any()
            assert not result["left"].any()


def test_without_an_end_the_weights_go_on_moving_at_rate_0_without_gradients() -> None:
    results = lockstep.run(2, lambda w: _ended(w.rank, 2, {}, 10, "exchange_now", (), group=w))
    for result in results:
        assert torch.equal(result["after"], result["before"])  # every step was exchanged
        assert not torch.equal(result["later"], result["after"])


def test_an_exchange_before_its_time_has_what_is_there() -> None:
    def train(worker: Any) -> dict[str, Any]:
        model, optimizer = _trained(worker.rank, 6, worker, every=4, values="fp64")
        before, undelivered = _flat(optimizer), _undelivered(optimizer)
        optimizer.exchange_now()
        once = optimizer.statistics
        after, left = _flat(optimizer), optimizer.residual.clone()
        assert all(
            map(torch.equal, non_batchnorm(model).values(), optimizer.shared_weights().values())
        )
        optimizer.exchange_now()
        again = optimizer.statistics
        exchanged = []
        for step in range(6, 12):
            backward(model, step, worker.rank)
            optimizer.step()
            exchanged.append(optimizer.statistics.exchanged)
        return {"before": before, "undelivered": undelivered, "after": after, "left": left,
                "once": once, "again": again, "exchanged": exchanged}  # fmt: skip

    results = lockstep.run(2, train)
    arrived = torch.stack([r["undelivered"] - r["left"] for r in results]).mean(0)
    for result in results:
        torch.testing.assert_close(
            result["after"], 0.999**2 * result["before"] + arrived, rtol=1e-12, atol=1e-14
        )
        assert torch.equal(result["after"], results[0]["after"])
        assert result["once"].exchanged
        assert result["once"].bytes_sent > 0
        assert (result["again"].bytes_sent, result["again"].exchanged) == (0, False)
        assert result["again"].step == result["once"].step == 6
        assert result["exchanged"] == [False] * 3 + [True] + [False] * 2


def test_without_local_steps_there_is_nothing_to_exchange_before_its_time() -> None:
    for kind in (ggs.GGS, ggs.Dense):
        model = build("plain")
        optimizer = kind(torch.optim.Adam(model.parameters()), model)
        backward(model, 0, 0)
        optimizer.step()
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.exchange_now()
        assert all(map(torch.equal, before, model.parameters()))
        assert optimizer.statistics.step == 1


@pytest.mark.parametrize("other", ["step", "exchange_now", "drain(3)"])
def test_workers_that_end_differently_are_told(other: str) -> None:
    def train(worker: Any) -> None:
        model, optimizer = _trained(worker.rank, 6, worker, every=4)
        if worker.rank == 0:
            optimizer.drain()
        elif other == "step":
            for step in (6, 7):
                backward(model, step, worker.rank)
                optimizer.step()
        elif other == "exchange_now":
            optimizer.exchange_now()
        else:
            optimizer.drain(3)

    with pytest.raises(MismatchError):
        lockstep.run(2, train)


def test_half_precision_weights_keep_what_they_cannot_hold() -> None:
    def train(worker: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        _, optimizer = _trained(
            worker.rank, 10, worker, every=4, weight_decay=0.0, dtype=torch.bfloat16
        )
        undelivered = _undelivered(optimizer).double()
        before = _flat(optimizer).double()
        optimizer.drain()
        return before, undelivered, _flat(optimizer).double(), optimizer.residual.double()

    results = lockstep.run(2, train)
    lost = torch.stack([undelivered for _, undelivered, _, _ in results]).mean(0)
    for before, _, after, left in results:
        assert torch.equal(after, results[0][2])
        assert (left.abs() <= after.abs() * 2.0**-8).all()
        assert left.any()
        torch.testing.assert_close(after + left, before + lost, rtol=1e-6, atol=1e-7)


def test_what_cannot_be_drained_is_named() -> None:
    _, optimizer = _trained(0, 3)
    with pytest.raises(ConfigurationError, match="steps is 0"):
        optimizer.drain(0)
    optimizer.residual[3] = float("nan")
    with pytest.raises(NonFiniteError, match="residual is not finite"):
        optimizer.drain()

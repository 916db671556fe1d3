"""Momentum that follows the density."""

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn

import ggs
from ggs.dist import lockstep
from ggs.optim.momentum import following
from tests.models import backward, build

ADAMS = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam")


def test_the_rule() -> None:
    assert following(0.9, 1.0) == pytest.approx(0.9)
    assert following(0.9, 0.01) == pytest.approx(0.09 / 1.09)
    assert following(0.0, 0.1) == 0.0


def _trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 6
) -> list[torch.Tensor]:
    for step in range(steps):
        backward(model, step, 0)
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("kind", ADAMS)
def test_an_optimizer_with_that_momentum_takes_the_same_steps(kind: str) -> None:
    first, second = build("plain"), build("plain")
    make = getattr(torch.optim, kind)
    inner = make(first.parameters(), betas=(0.9, 0.99))
    a = ggs.GGS(inner, first, 0.05, momentum_follows_density=True)
    b = ggs.GGS(make(second.parameters(), betas=(following(0.9, 0.05), 0.99)), second, 0.05)
    for one, other in zip(_trained(first, a), _trained(second, b), strict=True):
        assert torch.equal(one, other)
    assert inner.param_groups[0]["betas"] == (0.9, 0.99)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_moves_as_far_with_a_constant_gradient(nesterov: bool) -> None:
    """The sum of SGD's momentum is shorter, and the learning rate longer."""
    moved = []
    for follows in (False, True):
        model = nn.Linear(8, 8, bias=False)
        start = model.weight.detach().clone()
        sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=nesterov)
        optimizer = ggs.GGS(sgd, model, lambda step: 0.5, momentum_follows_density=follows)
        for _ in range(400):
            model.weight.grad = torch.ones_like(model.weight)
            optimizer.step()
        optimizer.drain()
        moved.append(float((model.weight - start).detach().mean()))
        assert sgd.param_groups[0]["lr"] == 0.01
        assert sgd.param_groups[0]["momentum"] == 0.9
    assert moved[1] == pytest.approx(moved[0], rel=0.03)  # but for the first steps' run-up


def test_the_schedule_is_followed() -> None:
    model = build("plain")
    optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, 0.01, warmup_steps=4,
                        momentum_follows_density=True)  # fmt: skip
    assert optimizer.momentum_at(0) == [(0.9, pytest.approx(0.9))]
    taken = [optimizer.momentum_at(step)[0][1] for step in range(6)]
    assert taken == sorted(taken, reverse=True)
    assert taken[4] == pytest.approx(following(0.9, 0.01))


def _weights(worker: Any, options: dict[str, Any]) -> list[torch.Tensor]:
    model = build("plain")
    inner = torch.optim.Adam(model.parameters())
    return _trained(model, ggs.GGS(inner, model, 0.05, process_group=worker, **options))


def test_off_is_the_default_and_changes_nothing() -> None:
    plain = lockstep.run(2, lambda worker: _weights(worker, {}))
    off = lockstep.run(2, lambda worker: _weights(worker, {"momentum_follows_density": False}))
    on = lockstep.run(2, lambda worker: _weights(worker, {"momentum_follows_density": True}))
    assert all(map(torch.equal, plain[0], off[0]))
    assert not all(map(torch.equal, plain[0], on[0]))
    assert all(map(torch.equal, on[0], on[1]))


def test_local_steps_keep_their_momentum() -> None:
    on = _weights(None, {"momentum_follows_density": True, "every": 2})
    off = _weights(None, {"momentum_follows_density": False, "every": 2})
    assert all(map(torch.equal, on, off))


def test_the_workers_must_agree() -> None:
    def construct(worker: Any) -> str:
        model = nn.Linear(4, 4)
        adam = torch.optim.Adam(model.parameters())
        try:
            ggs.GGS(
                adam, model, 0.1, momentum_follows_density=worker.rank == 0, process_group=worker
            )
        except ggs.errors.MismatchError as error:
            return str(error)
        return ""

    assert all("momentum_follows_density" in text for text in lockstep.run(2, construct))


def test_a_state_knows_it() -> None:
    model = build("plain")
    adam = torch.optim.Adam(model.parameters())
    optimizer = ggs.GGS(adam, model, 0.05, momentum_follows_density=True)
    _trained(model, optimizer, 2)
    state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    expected = _trained(model, optimizer, 3)

    again = build("plain")
    resumed = ggs.GGS(
        torch.optim.Adam(again.parameters()), again, 0.05, momentum_follows_density=True
    )
    again.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert all(map(torch.equal, expected, _trained(again, resumed, 3)))

    other = ggs.GGS(torch.optim.Adam(again.parameters()), again, 0.05)
    with pytest.raises(ggs.errors.CheckpointError, match="is of momentum_follows_density=True"):
        other.load_state_dict(state)


class _Lion(torch.optim.Adam):
    """Somebody's own optimizer, with betas."""


def test_the_log_says_what_becomes_of_the_momentum(caplog: pytest.LogCaptureFixture) -> None:
    model = build("plain")
    with caplog.at_level(logging.INFO, "ggs"):
        adam = torch.optim.Adam(model.parameters())
        ggs.GGS(adam, model, 0.05, momentum_follows_density=True)
        assert "momentum follows the density 0.05: 0.9 becomes 0.31" in caplog.text
        lion = _Lion(model.parameters())
        ggs.GGS(lion, model, 0.05, momentum_follows_density=True)
        assert "momentum stays as it is: _Lion is none of torch's own" in caplog.text
        caplog.clear()
        adagrad = torch.optim.Adagrad(model.parameters())
        ggs.GGS(adagrad, model, 0.05, momentum_follows_density=True)
        assert "momentum" not in caplog.text

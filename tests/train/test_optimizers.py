"""Optimizers by name and the course of the learning rate."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from ggs.errors import ConfigurationError
from ggs.exchange import create as exchange
from ggs.train.config import TrainConfig
from ggs.train.optimizers import (
    build_optimizer,
    distribute,
    lr_factor,
    optimizer_classes,
    scheduler,
)


def config(**settings: object) -> TrainConfig:
    return TrainConfig.model_validate(settings)


def test_every_torch_optimizer_has_a_name() -> None:
    names = set(optimizer_classes())
    assert {"adam", "adamw", "sgd", "rmsprop", "adagrad", "adadelta", "nadam", "radam"} <= names
    assert "optimizer" not in names


def test_settings_and_options_reach_the_optimizer() -> None:
    settings = config(
        optimizer="SGD",
        lr=0.5,
        momentum=0.9,
        weight_decay=1e-4,
        optimizer_options={"nesterov": True},
    )
    optimizer = build_optimizer(settings, nn.Linear(2, 2).parameters())
    assert type(optimizer) is torch.optim.SGD
    group = optimizer.param_groups[0]
    found = [group[name] for name in ("lr", "momentum", "weight_decay", "nesterov")]
    assert found == [0.5, 0.9, 1e-4, True]


def test_amsgrad_is_adam_with_its_flag() -> None:
    settings = config(optimizer="amsgrad", optimizer_options={"betas": [0.5, 0.75]})
    optimizer = build_optimizer(settings, nn.Linear(2, 2).parameters())
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.param_groups[0]["amsgrad"] is True
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.75)


def test_unset_means_the_optimizers_own_default() -> None:
    optimizer = build_optimizer(config(optimizer="adamw"), nn.Linear(2, 2).parameters())
    assert optimizer.param_groups[0]["weight_decay"] == 0.01


def test_a_setting_given_twice_is_refused() -> None:
    settings = config(optimizer="sgd", momentum=0.9, optimizer_options={"momentum": 0.5})
    with pytest.raises(ConfigurationError, match="momentum is given as a setting of its own too"):
        build_optimizer(settings, nn.Linear(2, 2).parameters())


def factors(settings: TrainConfig, steps: int = 100, per_epoch: int = 10) -> list[float]:
    return [lr_factor(settings, step, steps, per_epoch) for step in range(steps)]


def test_constant_and_warmup() -> None:
    assert factors(config()) == [1.0] * 100
    warm = factors(config(lr_warmup="4 steps"))
    assert warm[:6] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_and_linear_fall_to_zero_at_the_end() -> None:
    cosine = factors(config(lr_schedule="cosine", lr_warmup="2 epochs"))
    assert cosine[19] == cosine[20] == 1.0
    assert cosine[60] == pytest.approx(0.5)
    assert cosine[99] == pytest.approx(0.5 * (1 + math.cos(math.pi * 79 / 80)))
    linear = factors(config(lr_schedule="linear"))
    assert linear[0] == 1.0
    assert linear[50] == 0.5
    assert linear[99] == pytest.approx(0.01)


def test_step_drops_by_gamma() -> None:
    stairs = factors(config(lr_schedule="step", lr_step="3 epochs", lr_gamma=0.5))
    assert [stairs[i] for i in (0, 29, 30, 59, 60, 99)] == [1, 1, 0.5, 0.5, 0.25, 0.125]


def test_the_scheduler_sets_the_rate_of_each_step() -> None:
    settings = config(lr=0.2, lr_schedule="linear")
    optimizer = build_optimizer(settings, nn.Linear(2, 2).parameters())
    schedule = scheduler(settings, optimizer, 10, 5)
    rates = []
    for _ in range(10):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.2 * (1 - step / 10) for step in range(10)])


@pytest.mark.parametrize("name", sorted(set(optimizer_classes()) - {"lbfgs", "sparseadam", "asgd"}))
def test_every_optimizer_passes_its_trial_without_a_trace(name: str) -> None:
    model = nn.Linear(2, 2, bias=False)
    before = model.weight.detach().clone()
    state = torch.get_rng_state()
    build_optimizer(config(optimizer=name), model.parameters())
    assert torch.equal(model.weight, before)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("method", ["ggs", "gs", "dgc"])
def test_the_exchange_reaches_the_optimizer(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    asked = []
    create = exchange.create

    def watched(name: exchange.ExchangeName, *rest: Any) -> exchange.Exchange:
        asked.append((name, rest[-1]))
        return create(name, *rest)

    monkeypatch.setattr(exchange, "create", watched)
    for settings in ({}, {"exchange": "split", "workers_per_node": 1}):
        chosen, model = config(method=method, optimizer="sgd", **settings), nn.Linear(2, 2)
        distribute(chosen, build_optimizer(chosen, model.parameters()), model, 0, None)
    assert asked == [("auto", None), ("split", 1)]

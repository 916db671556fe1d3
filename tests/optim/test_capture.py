"""Somebody else's optimizers, whatever they are called: captured as what they do, not as what torch does."""

from typing import Any

import pytest
import torch
from torch import nn

import ggs
from tests.models import backward, build


class AdamW(torch.optim.Optimizer):
    """Its weight decay is not multiplied by the learning rate, as in the paper."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3, "weight_decay": 1e-2})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - group["weight_decay"])
                parameter.add_(parameter.grad.sign(), alpha=-group["lr"])


class Muon(torch.optim.Optimizer):
    """Its step is scaled by the weight's norm."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                update = parameter.grad / (parameter.grad.norm() + 1e-9) * parameter.norm()
                parameter.add_(update, alpha=-group["lr"])


class Adafactor(torch.optim.Optimizer):
    """Finds its learning rate by itself, as Transformers' does with lr=None."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": None, "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                rate = 0.01 * max(1e-3, float(parameter.square().mean().sqrt()))
                parameter.mul_(1 - rate * group["weight_decay"])
                parameter.add_(parameter.grad.sign(), alpha=-rate)


class NAdam(torch.optim.Optimizer):
    """Has an option of torch's NAdam, and means nothing by it."""

    def __init__(self, parameters: Any) -> None:
        defaults = {"lr": 0.01, "weight_decay": 0.5, "decoupled_weight_decay": True}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])


class OwnAdamW(torch.optim.AdamW):
    """A subclass of torch's with a decay of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.01, weight_decay=0.1)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            group["weight_decay"] = 0.0
            for parameter in group["params"]:
                parameter.sub_(parameter.sign(), alpha=1e-3)
        super().step()
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("kind", [AdamW, Muon, Adafactor, NAdam, OwnAdamW])
def test_an_optimizer_of_a_known_name_does_what_it_does_without_us(kind: Any, every: int) -> None:
    plain, wrapped = build("plain", torch.float64), build("plain", torch.float64)
    reference = kind(plain.parameters())
    optimizer = ggs.GGS(kind(wrapped.parameters()), wrapped, 1.0, values="fp64", every=every)
    for step in range(20):
        for model, each in ((plain, reference), (wrapped, optimizer)):
            backward(model, step, 0)
            each.step()
    for expected, found in zip(plain.parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_weight_decay_leaves_the_gradient_as_it_is(kind: Any, every: int) -> None:
    """A second step on the same gradient decays once more, and not twice."""
    plain, wrapped = build("batchnorm", torch.float64), build("batchnorm", torch.float64)
    reference = kind(plain.parameters(), lr=0.01, weight_decay=0.1)
    inner = kind(wrapped.parameters(), lr=0.01, weight_decay=0.1)
    optimizer = ggs.GGS(inner, wrapped, 1.0, values="fp64", every=every)
    for model in (plain, wrapped):
        backward(model, 0, 0)
    before = [(parameter.grad, parameter.grad.clone()) for parameter in wrapped.parameters()]
    for _ in range(4):
        reference.step()
        optimizer.step()
    for parameter, (gradient, values) in zip(wrapped.parameters(), before, strict=True):
        assert parameter.grad is gradient
        assert torch.equal(gradient, values)
    for expected, found in zip(plain.parameters(), wrapped.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_dense_training_takes_an_optimizer_without_a_learning_rate() -> None:
    model: nn.Module = build("plain")
    optimizer = ggs.Dense(Adafactor(model.parameters()), model)
    before = model[1].weight.detach().clone()
    backward(model, 0, 0)
    optimizer.step()
    assert not torch.equal(model[1].weight, before)

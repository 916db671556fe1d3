"""The inner optimizers of the language study, by name, with their momentum as the one thing that varies.

Two are not in every torch: Lion, and Muon for the matrices of the blocks with AdamW for everything else.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from language_model import CharacterTransformer
from torch import Tensor, nn

from ggs.errors import UnsupportedError

WEIGHT_DECAY = 0.01
"""Decoupled, of AdamW and NAdam; the other optimizers have none."""


class Lion(torch.optim.Optimizer):
    """The sign of an interpolation between momentum and gradient.

    w -= lr·sign(beta1·m + (1 - beta1)·g), then m = beta2·m + (1 - beta2)·g (X. Chen et al., "Symbolic
    discovery of optimization algorithms", NeurIPS 2023), without weight decay.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, betas: tuple[float, float]
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step; no closure."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum: Tensor = self.state[parameter].setdefault(
                    "momentum", torch.zeros_like(parameter)
                )
                direction = torch.lerp(parameter.grad, momentum, beta1).sign_()
                parameter.sub_(direction, alpha=group["lr"])
                momentum.lerp_(parameter.grad, 1 - beta2)


class MuonAndAdamW(torch.optim.Optimizer):
    """``torch.optim.Muon`` for the blocks' matrices and AdamW for the rest, with the same learning rate.

    Muon's rate is scaled by its authors' rule for AdamW's (``match_rms_adamw``). No weight decay.
    """

    def __init__(self, model: CharacterTransformer, lr: float, momentum: float) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise UnsupportedError(
                f"torch {torch.__version__} has no Muon: install 2.9 or newer, or leave it out"
            )
        matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
        chosen = set(matrices)
        others = [p for p in model.parameters() if p not in chosen]
        muon = torch.optim.Muon(
            matrices, lr=lr, momentum=momentum, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
        )
        adamw = torch.optim.AdamW(others, lr=lr, betas=(momentum, 0.999), weight_decay=0.0)
        self._parts = (muon, adamw)
        super().__init__([{"params": matrices}, {"params": others}], {})
        self.param_groups[:] = [*muon.param_groups, *adamw.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of both; no closure."""
        for part in self._parts:
            part.step()


def create(
    name: str, model: CharacterTransformer, lr: float, momentum: float
) -> torch.optim.Optimizer:
    """The optimizer that is called ``name``; ``momentum`` is its beta1 where it has one.

    Raises KeyError for an unknown name.
    """
    return _OPTIMIZERS[name](model, lr, momentum)


def _adamw(model: CharacterTransformer, lr: float, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(), lr=lr, betas=(momentum, 0.999), weight_decay=WEIGHT_DECAY
    )


def _nadam(model: CharacterTransformer, lr: float, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.NAdam(
        model.parameters(),
        lr=lr,
        betas=(momentum, 0.999),
        weight_decay=WEIGHT_DECAY,
        decoupled_weight_decay=True,
    )


def _sgd(model: CharacterTransformer, lr: float, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)


def _rmsprop(model: CharacterTransformer, lr: float, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(model.parameters(), lr=lr, momentum=momentum)


def _lion(model: CharacterTransformer, lr: float, momentum: float) -> torch.optim.Optimizer:
    return Lion(model.parameters(), lr, (momentum, 0.99))


_OPTIMIZERS: dict[str, Callable[[Any, float, float], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "nadam": _nadam,
    "sgd": _sgd,
    "rmsprop": _rmsprop,
    "lion": _lion,
    "muon": MuonAndAdamW,
}
OPTIMIZERS = tuple(_OPTIMIZERS)

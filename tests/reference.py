"""GGS as plainly as it can be said: N workers in one process, no flat buffers, no wire, no swaps.

The fast path is compared with this twin. It keeps N whole models; worker i's optimizer steps on its own
copy, the difference to where all were is its update, and the copy is set back before the exchange.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tests.models import backward


class Twin(Protocol):
    """What every plain twin is: whole models, and a step from the gradients that they hold."""

    models: list[nn.Module]

    def step(self) -> None:
        """One step of all models."""


def assert_equals_twin(results: Sequence[dict[str, Any]], twin: Twin, steps: int) -> None:
    """Train ``twin`` for ``steps``; each worker's "parameters" in ``results`` must be its models'."""
    for step in range(steps):
        for rank, model in enumerate(twin.models):
            backward(model, step, rank)
        twin.step()
    for rank, (result, model) in enumerate(zip(results, twin.models, strict=True)):
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(
                result["parameters"][name], parameter.detach(), rtol=1e-9, atol=1e-11,
                msg=lambda text, name=name, rank=rank: f"{name} on rank {rank}: {text}",
            )  # fmt: skip


class Reference:
    """N workers of GGS (Algorithm 1 of the docs) in one process."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        size: int,
        density: float | Callable[[int], float],
        decoupled_decay: float = 0.0,
        per_tensor: bool = False,
        every: int = 1,
    ) -> None:
        self.models = [build() for _ in range(size)]
        self.optimizers = [make_optimizer(list(m.parameters())) for m in self.models]
        self.shared = [
            [p for m in model.modules() if not isinstance(m, nn.modules.batchnorm._BatchNorm)
             for p in m.parameters(recurse=False)]
            for model in self.models
        ]  # fmt: skip
        self.residuals = [[torch.zeros_like(p) for p in shared] for shared in self.shared]
        self.points = [[p.detach().clone() for p in shared] for shared in self.shared]
        self.density, self.decay, self.per_tensor = density, decoupled_decay, per_tensor
        self.every = every
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:
        """One step, from the gradients that every model holds; what it moved is exchanged every so often."""
        for optimizer, shared, points in zip(
            self.optimizers, self.shared, self.points, strict=True
        ):
            for p in [*shared, *points]:
                p.mul_(1 - optimizer.param_groups[0]["lr"] * self.decay)
            optimizer.step()
        self.steps += 1
        if self.steps % self.every == 0:
            self._exchange()

    def _exchange(self) -> None:
        for shared, points, residual in zip(self.shared, self.points, self.residuals, strict=True):
            for p, point, r in zip(shared, points, residual, strict=True):
                r += p - point
                p.copy_(point)
        density = self.density(self.steps - 1) if callable(self.density) else self.density
        sent = [self._select(residual, density) for residual in self.residuals]
        for shared, points in zip(self.shared, self.points, strict=True):
            for i, p in enumerate(shared):
                p += torch.stack([s[i] for s in sent]).mean(0)
            for p, point in zip(shared, points, strict=True):
                point.copy_(p)

    def _select(self, residual: list[Tensor], density: float) -> list[Tensor]:
        """Take the largest elements out of a worker's residual; zeros elsewhere."""
        groups = [[r] for r in residual] if self.per_tensor else [residual]
        chosen = []
        for group in groups:
            flat = torch.cat([r.reshape(-1) for r in group])
            mask = torch.zeros(len(flat), dtype=torch.bool)
            count = min(len(flat), max(1, round(len(flat) * density)))
            mask[flat.abs().topk(count).indices] = True
            masks = torch.split(mask, [r.numel() for r in group])
            chosen += [r * m.view_as(r) for r, m in zip(group, masks, strict=True)]
            for r, m in zip(group, masks, strict=True):
                r[m.view_as(r)] = 0.0
        return chosen

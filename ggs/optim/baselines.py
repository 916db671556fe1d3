"""The methods that GGS is compared with, under its own contract: construct and use them like ``ggs.GGS``.

Both exchange the largest elements of accumulated *gradients*, where GGS exchanges those of accumulated
*updates*. The mean of what all workers sent becomes ``p.grad`` on every worker, and one optimizer, the
same on all of them, takes a step with it. Selection, coding, exchange and batch-norm layers are GGS's.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ggs.dist.process_group import Group
from ggs.errors import ConfigurationError, UnsupportedError
from ggs.exchange.base import Update
from ggs.exchange.create import ExchangeName
from ggs.optim.base import HasGradient
from ggs.optim.batchnorm import BatchNormMode
from ggs.optim.capture import weight_decay_applied, weight_decay_kind
from ggs.optim.error_feedback import ResidualOptimizer, Scope
from ggs.optim.schedule import DensitySchedule, check_density


class _OnGradients(ResidualOptimizer):
    """A residual of gradients instead of updates, and a global optimizer instead of local ones."""

    def _apply(
        self, dense_sum: Tensor | None, updates: Iterable[Update], has_gradient: HasGradient
    ) -> None:
        """The mean of what was sent becomes every shared gradient, and the optimizer steps.

        A parameter that no worker has a gradient of keeps none, unless something old arrives for it.
        """
        mean = torch.zeros_like(self.residual)
        start = self._flat.dense_numel
        if dense_sum is not None:
            mean[:start] = dense_sum / self.collectives.size
        sparse = mean[start:]
        for update in updates:
            if update.indices is None:
                sparse += update.values
            else:
                sparse.index_add_(0, update.indices, update.values.to(mean.dtype))
        sparse /= self._exchange.sources
        for slot in self._flat.slots:
            arrived = slot.view(mean)
            if has_gradient[slot.parameter] or bool(arrived.any()):
                if slot.parameter.grad is None:
                    slot.parameter.grad = torch.empty_like(slot.parameter)
                slot.parameter.grad.copy_(arrived)
        self.inner.step()


class GradientSparsification(_OnGradients):
    """Plain gradient sparsification with error feedback, around any torch optimizer.

    Each worker adds its raw gradient to its residual and sends the largest elements; the optimizer
    steps on their mean, identically on all workers. An element reaches the optimizer only now and then,
    as a sum of old and new gradients: what GGS's gradient correction avoids. (Aji and Heafield, "Sparse
    communication for distributed gradient descent", EMNLP 2017, with exact selection.)

    Arguments and errors: as ``ggs.GGS``. Weight decay is the optimizer's own, on the true weights.
    """

    def _capture(self, has_gradient: HasGradient) -> None:
        for slot in self._flat.slots:
            if slot.parameter.grad is not None:
                slot.view(self.residual).add_(slot.parameter.grad)


class DeepGradientCompression(_OnGradients):
    """Deep Gradient Compression: momentum correction, momentum factor masking, local clipping.

    One step of one worker (Y. Lin et al., "Deep gradient compression", ICLR 2018), with the momentum m of
    the optimizer and its own gradient g, clipped and with weight decay added:

        u = m·u + g;  v = v + u        (Nesterov: v = v + g + m·u)
        send the largest elements of v; v and u become 0 there
        w = w - lr · (mean of what all workers sent)

    It is a method for momentum SGD: the optimizer must be ``torch.optim.SGD``. Its momentum happens before
    the exchange, in u, and its own step is a plain one with its learning rate. Tensors below
    ``dense_below`` have momentum without masking, as in the authors' code; batch-norm layers that are
    local have plain local momentum SGD.

    Args:
        optimizer: a ``torch.optim.SGD`` without dampening.
        model, density, budget, warmup_steps, scope, values, exchange, workers_per_node, batchnorm,
            dense_below, max_consecutive_skips, process_group: as in ``ggs.GGS``. The paper's warm-up is
            ``density=staircase_warmup(0.001, 4 * steps_per_epoch)``.
        clip_norm: limit of the mean gradient's norm, C. As in the paper, where what a worker adds to the
            mean is g/N, it limits that share to C/√N, and so g to C·√N: a mean of N independent
            gradients is about √N times shorter than one of them. With ``exchange="hierarchical"`` N
            counts nodes. None for no clipping (the paper clips recurrent networks only).
        momentum_masking: forget the momentum of what was sent.

    Raises: as ``ggs.GGS``; UnsupportedError for another optimizer.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        density: float | DensitySchedule | None = None,
        *,
        budget: str | float | None = None,
        warmup_steps: int = 0,
        scope: Scope = "global",
        values: str | None = None,
        exchange: ExchangeName = "auto",
        workers_per_node: int | None = None,
        batchnorm: BatchNormMode = "average",
        dense_below: int = 0,
        clip_norm: float | None = None,
        momentum_masking: bool = True,
        max_consecutive_skips: int = 100,
        process_group: Group | None = None,
    ) -> None:
        require_sgd(optimizer)
        if clip_norm is not None and not clip_norm > 0.0:
            raise ConfigurationError(f"clip_norm is {clip_norm}: give a norm above 0, or None")
        self._clip_norm, self._masking = clip_norm, momentum_masking
        super().__init__(
            optimizer,
            model,
            density,
            budget=budget,
            warmup_steps=warmup_steps,
            scope=scope,
            values=values,
            exchange=exchange,
            workers_per_node=workers_per_node,
            batchnorm=batchnorm,
            dense_below=dense_below,
            max_consecutive_skips=max_consecutive_skips,
            process_group=process_group,
        )
        self.velocity = torch.zeros_like(self.residual)
        """(n,) u of the shared parameters, in flat order."""
        self._views = {
            slot.parameter: (slot.view(self.velocity), slot.view(self.residual))
            for slot in self._flat.slots
        }
        self._local_velocity = {name: torch.zeros_like(p) for name, p in self._locals}

    def _description(self, settings: dict[str, Any]) -> dict[str, Any]:
        ours = {"clip_norm": self._clip_norm, "momentum_masking": self._masking}
        return super()._description({**settings, **ours})

    def _capture(self, has_gradient: HasGradient) -> None:
        if self._clip_norm is not None:
            trained = [p for _, p in [*self.shared, *self._locals]]
            limit = self._clip_norm * math.sqrt(self._exchange.sources)
            nn.utils.clip_grad_norm_(trained, limit)
        with weight_decay_applied(self.inner, self.param_groups, has_gradient):
            local_steps = self._accumulate(has_gradient)
        for parameter, step in local_steps:
            assert parameter.grad is not None
            parameter.grad.copy_(step)

    def _apply(
        self, dense_sum: Tensor | None, updates: Iterable[Update], has_gradient: HasGradient
    ) -> None:
        """See ``_OnGradients._apply``; the gradients have weight decay and momentum already."""
        with _plain_steps(self.inner):
            super()._apply(dense_sum, updates, has_gradient)

    def _accumulate(self, has_gradient: HasGradient) -> list[tuple[nn.Parameter, Tensor]]:
        """u = m·u + g and v = v + u. Returns the local parameters, each with the u for its gradient."""
        local_steps = []
        local = {p: self._local_velocity[name] for name, p in self._locals}
        for group in self.param_groups:
            momentum, nesterov = float(group["momentum"]), bool(group["nesterov"])
            for parameter in group["params"]:
                gradient = parameter.grad
                if has_gradient.get(parameter):
                    velocity, residual = self._views[parameter]
                    step = _momentum_step(velocity, gradient, momentum, nesterov)
                    residual.add_(step)
                elif parameter in local and gradient is not None:
                    step = _momentum_step(local[parameter], gradient, momentum, nesterov)
                    local_steps.append((parameter, step))
        return local_steps

    def _on_selected(self, indices: Tensor, values: Tensor) -> None:
        """Check what is about to be sent, and forget its momentum."""
        super()._on_selected(indices, values)
        if self._masking:
            self.velocity[self._flat.dense_numel :][indices] = 0.0

    def _state_tensors(self) -> dict[str, dict[str, Tensor]]:
        shared = {slot.name: slot.view(self.velocity) for slot in self._flat.slots}
        return {**super()._state_tensors(), "velocity": {**shared, **self._local_velocity}}


def _momentum_step(
    velocity: Tensor, gradient: Tensor | None, momentum: float, nesterov: bool
) -> Tensor:
    """velocity = momentum·velocity + gradient, in place; what SGD then multiplies with its rate."""
    velocity.mul_(momentum)
    if gradient is not None:
        velocity.add_(gradient)
    if not nesterov:
        return velocity
    ahead = velocity * momentum
    return ahead if gradient is None else ahead.add_(gradient)


@contextmanager
def _plain_steps(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, SGD has neither momentum nor the weight decay that the gradients have already."""
    kept = [dict(group) for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group.update(momentum=0.0, nesterov=False)
        if weight_decay_kind(optimizer, group) != "unknown":
            group["weight_decay"] = 0.0
    try:
        yield
    finally:
        for group, before in zip(optimizer.param_groups, kept, strict=True):
            group.update({name: before[name] for name in ("momentum", "nesterov", "weight_decay")})


def require_sgd(optimizer: torch.optim.Optimizer) -> None:
    """Raise UnsupportedError where ``DeepGradientCompression`` cannot take ``optimizer``'s place."""
    if not isinstance(optimizer, torch.optim.SGD):
        raise UnsupportedError(
            f"Deep Gradient Compression is a method for momentum SGD and cannot use "
            f"{type(optimizer).__name__}: give torch.optim.SGD with momentum, or use GGS"
        )
    if any(group["dampening"] for group in optimizer.param_groups):
        raise UnsupportedError(
            "Deep Gradient Compression has no dampening: set dampening=0 in torch.optim.SGD"
        )


def staircase_warmup(density: float, steps: int, stairs: int = 4) -> DensitySchedule:
    """A density of 1/4, 1/16, 1/64, ... on ``stairs`` equal stairs in ``steps`` steps, then ``density``.

    With four stairs of an epoch each it is the warm-up of Lin et al.: 75 %, 93.75 %, 98.4375 % and 99.6 %
    sparsity. No stair goes below ``density``.

    Raises ConfigurationError for a density outside (0, 1], negative steps or no stairs.
    """
    check_density(density)
    if steps < 0 or stairs < 1:
        raise ConfigurationError(
            f"steps is {steps} and stairs is {stairs}: give at least 0 steps and 1 stair"
        )

    def schedule(step: int) -> float:
        if step >= steps:
            return density
        return max(density, 0.25 ** (1 + step * stairs // steps))

    return schedule

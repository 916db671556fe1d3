"""Gradient correction's first half: the local optimizer's update, captured in the residual.

The optimizer is pointed at other memory for the length of its step, by swapping the parameters'
storage:

- *shadow*: at the residual itself, for optimizers whose update does not read the weights. The update
  is added to the residual with no copy and no extra memory;
- *scratch*: at zeros, where the residual has a wider dtype than the weights (half precision): an
  update next to zero keeps its relative precision;
- *snapshot*: at a copy of the weights, for optimizers whose update reads them. The update is the
  difference, rounded to the weights' precision.

Weight decay of torch's own optimizers is taken out of them for that step: coupled decay is added to the
gradient from the true weights, decoupled decay shrinks the true weights on every rank alike. Neither may
reach the residual from stale or from no weights. What another optimizer does to the weights, decay or
anything else, is part of its update.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ggs.optim.flat import Chunk, FlatParameters

# Torch's own classes only: another one of the same name, or a subclass, may mean something else by its decay
# and may read the weights.
_TORCH_MUON: tuple[type[torch.optim.Optimizer], ...] = (
    (torch.optim.Muon,) if hasattr(torch.optim, "Muon") else ()  # since torch 2.9
)
_READS_NO_WEIGHTS = (
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SGD,
    *_TORCH_MUON,
)
_ALWAYS_DECOUPLED = (torch.optim.AdamW, torch.optim.Adafactor, *_TORCH_MUON)


def weight_decay_kind(
    optimizer: torch.optim.Optimizer, group: dict[str, Any]
) -> Literal["coupled", "decoupled", "unknown"]:
    """How a parameter group's weight decay works: on the gradient, on the weights, or unknown to us."""
    kind = type(optimizer)
    if kind in _ALWAYS_DECOUPLED:
        return "decoupled"
    if kind not in _READS_NO_WEIGHTS:
        return "unknown"
    return "decoupled" if group.get("decoupled_weight_decay") else "coupled"


class UpdateCapture:
    """Runs the inner optimizer so that its update of the shared parameters lands in the residual.

    Args:
        optimizer: the inner optimizer.
        flat: the shared parameters.
        residual: (n,) the worker's residual, in ``flat``'s index space and dtype.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, flat: FlatParameters, residual: Tensor
    ) -> None:
        self._optimizer = optimizer
        self._reads_weights = type(optimizer) not in _READS_NO_WEIGHTS
        self._chunks = [
            (chunk, None if self._in_place(chunk, residual) else torch.empty_like(chunk.weights))
            for chunk in flat.chunks
        ]
        self._residual = residual
        self._swaps = [
            (slot.parameter, slot.parameter.data, slot.view(*self._target(chunk, scratch)))
            for chunk, scratch in self._chunks
            for slot in chunk.slots
        ]

    def _in_place(self, chunk: Chunk, residual: Tensor) -> bool:
        return not self._reads_weights and chunk.weights.dtype == residual.dtype

    def _target(self, chunk: Chunk, scratch: Tensor | None) -> tuple[Tensor, int]:
        return (self._residual, 0) if scratch is None else (scratch, chunk.start)

    @torch.no_grad()
    def step(self) -> None:
        """residual += the optimizer's update; the weights stay as they are.

        The optimizer's state advances. Parameters that are not in ``flat`` (local batch-norm layers)
        are updated in place, as the optimizer would without us.
        """
        for chunk, scratch in self._chunks:
            if scratch is not None and self._reads_weights:
                scratch.copy_(chunk.weights)
            elif scratch is not None:
                scratch.zero_()
        try:
            for parameter, _, target in self._swaps:
                parameter.data = target
            self._optimizer.step()
        finally:
            for parameter, weights, _ in self._swaps:
                parameter.data = weights
        for chunk, scratch in self._chunks:
            if scratch is not None:
                update = scratch.to(self._residual.dtype)
                if self._reads_weights:
                    update = update - chunk.weights.to(self._residual.dtype)
                self._residual[chunk.start : chunk.stop] += update


@contextmanager
def weight_decay_applied(
    optimizer: torch.optim.Optimizer,
    groups: Sequence[dict[str, Any]],
    has_gradient: dict[nn.Parameter, bool],
) -> Iterator[None]:
    """Apply the groups' weight decay to the true weights, or to gradients for inside; inside, it is zero.

    Args:
        optimizer: decides whether its decay is coupled or decoupled. The decay of an optimizer that
            we do not know stays inside its update.
        groups: the optimizer's parameter groups.
        has_gradient: for decoupled decay, whether *any* worker has a gradient for a parameter.
    """
    decays = [(group, group.get("weight_decay", 0.0)) for group in groups]
    kinds = [weight_decay_kind(optimizer, group) for group in groups]
    decays = [
        pair for pair, kind in zip(decays, kinds, strict=True) if pair[1] and kind != "unknown"
    ]
    kept: list[tuple[nn.Parameter, Tensor | None]] = []
    for group, decay in decays:
        if weight_decay_kind(optimizer, group) == "decoupled":
            shrunk = [p.data for p in group["params"] if has_gradient.get(p, p.grad is not None)]
            if shrunk:
                torch._foreach_mul_(shrunk, 1 - group["lr"] * decay)
        else:
            kept += _decay_gradients(group, float(decay))
        group["weight_decay"] = torch.zeros_like(decay) if isinstance(decay, Tensor) else 0.0
    try:
        yield
    finally:
        for group, decay in decays:
            group["weight_decay"] = decay
        for parameter, gradient in kept:
            parameter.grad = gradient


def _decay_gradients(
    group: dict[str, Any], decay: float
) -> list[tuple[nn.Parameter, Tensor | None]]:
    """Give the group's parameters gradients with coupled decay. Returns those that they had."""
    kept = [(p, p.grad) for p in group["params"] if p.grad is not None]
    if kept:
        sign = -1.0 if group.get("maximize") else 1.0
        weights = [p.data for p, _ in kept]
        decayed = torch._foreach_add([g for _, g in kept], weights, alpha=sign * decay)
        for (parameter, _), gradient in zip(kept, decayed, strict=True):
            parameter.grad = gradient
    return kept

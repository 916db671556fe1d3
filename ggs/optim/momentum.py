"""Momentum that follows the density.

A residual is momentum already: it adds up what came of an element until that is large enough to be sent. An
optimizer's momentum before it spreads each gradient over the m / (1 - m) steps that follow, on average, so
that it arrives in the residual in small parts, stands out less among the others, and takes several messages
instead of one. At density 1, where every step sends everything, that costs nothing. So the delay that
momentum adds shrinks with the density d, to d · m / (1 - m) steps. docs/theory.md has the argument and the
measurements.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_BETAS = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
)
"""Their first beta weighs a mean of gradients, so the step's length does not depend on it."""
_SUMS = (torch.optim.SGD, torch.optim.RMSprop)
"""Their momentum sums gradients up, to 1 / (1 - m) times one of them."""
_MEANS: tuple[type[torch.optim.Optimizer], ...] = tuple(
    kind for name in ("Muon",) if (kind := getattr(torch.optim, name, None)) is not None
)
"""Their momentum weighs a mean of gradients. Muon: since torch 2.9."""


def following(momentum: Any, density: float) -> Any:
    """The momentum, in [0, 1), with ``density`` times the delay of ``momentum``."""
    delay = density * momentum / (1 - momentum)
    return delay / (1 + delay)


def momentum_of(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> Any | None:
    """The momentum of a parameter group; None where there is none, or where we do not know the optimizer.

    Only torch's own classes are known: a subclass may mean something else.
    """
    kind = type(optimizer)
    if kind in _BETAS:
        return group["betas"][0]
    if kind in _SUMS or kind in _MEANS:
        return group["momentum"] or None
    return None


@contextmanager
def momentum_following(
    optimizer: torch.optim.Optimizer, groups: Sequence[dict[str, Any]], density: float
) -> Iterator[None]:
    """Inside, the groups' momentum is the one that belongs to ``density``.

    Where momentum sums gradients up, the learning rate makes up for the shorter sum, so that a constant
    gradient moves the weights as far as before.

    Args:
        optimizer: the inner optimizer; one that is not known keeps its momentum.
        groups: its parameter groups.
        density: of this step, in (0, 1].
    """
    kept: list[tuple[dict[str, Any], dict[str, Any]]] = []
    try:
        for group in groups:
            momentum = momentum_of(optimizer, group)
            if momentum is None or density == 1.0:
                continue
            shorter = following(momentum, density)
            if type(optimizer) in _BETAS:
                kept.append((group, {"betas": group["betas"]}))
                group["betas"] = (shorter, *group["betas"][1:])
            else:
                kept.append((group, {"momentum": momentum, "lr": group["lr"]}))
                group["momentum"] = shorter
                if type(optimizer) in _SUMS:
                    group["lr"] = group["lr"] * (1 - shorter) / (1 - momentum)
        yield
    finally:
        for group, before in kept:
            group.update(before)

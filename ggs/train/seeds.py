"""Random numbers that depend on what they are for, not on what was drawn before them."""

import numpy as np
import torch
from torch import Tensor

WEIGHTS, ORDER, AUGMENTATION, MODEL = range(4)
"""The purposes, so that no two of them share a stream. MODEL is dropout and the like."""


def derive(seed: int, purpose: int, *position: int) -> int:
    """A 64-bit seed for one purpose and position, e.g. ``derive(0, AUGMENTATION, epoch, index)``."""
    return int(np.random.SeedSequence([seed, purpose, *position]).generate_state(1, np.uint64)[0])


def generator(seed: int, purpose: int, *position: int) -> torch.Generator:
    """A CPU generator seeded with :func:`derive`."""
    return torch.Generator().manual_seed(derive(seed, purpose, *position))


def epoch_order(
    images: int, seed: int, epoch: int, rank: int, world_size: int, step_images: int
) -> Tensor:
    """The training images of one worker in one epoch: an int64 tensor of indices.

    One permutation per epoch, the same on every worker, of which each takes every ``world_size``-th.
    What does not fill a step of ``step_images`` images on every worker is left out, so that all take
    equally many steps.
    """
    order = torch.randperm(images, generator=generator(seed, ORDER, epoch))
    steps = images // (step_images * world_size)
    return order[: steps * step_images * world_size][rank::world_size]

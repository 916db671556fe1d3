"""A checkpoint of M workers for N others: what each of the N gets.

The undelivered update is the mean of the workers' residuals, Σ r_i / M, and must stay what it is. Old
worker i stands for the interval [i/M, (i+1)/M) of the unit interval, new worker j for [j/N, (j+1)/N); j
gets the mean of the old residuals weighted with how much of its interval each covers. Then
Σ_j r'_j / N = Σ_i r_i / M, and a residual keeps its size. Where the workers of a node share one residual,
of which each holds a part, i and j count nodes, and r_i is the sum of its workers' parts.

All that is one worker's own and has no mean (moments of any optimizer, batch-norm layers, counters) comes
whole from the old worker that covers most.

Between two exchanges of local steps a worker's sum of updates is undelivered as well, and shared out as
its residual is; the steps go on where they were.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor


def shares(old_size: int, new_size: int, rank: int) -> dict[int, Fraction]:
    """Old rank to its share of new rank ``rank``; the shares add up to 1."""
    first, last = rank * old_size // new_size, ((rank + 1) * old_size - 1) // new_size
    covered = {}
    for old in range(first, last + 1):
        low = max(Fraction(old, old_size), Fraction(rank, new_size))
        high = min(Fraction(old + 1, old_size), Fraction(rank + 1, new_size))
        covered[old] = (high - low) * new_size
    return covered


def main_source(covered: Mapping[int, Fraction]) -> int:
    """The old rank with the largest share, the lowest of equals."""
    return min(covered, key=lambda old: (-covered[old], old))


def merged_steps(steps: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The local steps of several workers as one's: with a gradient, or left out, where any had or was.

    Args:
        steps: of each worker, as in its state, equally many.
    """
    merged = []
    for row in zip(*steps, strict=True):
        gradients = [any(has) for has in zip(*(step["gradients"] for step in row), strict=True)]
        skipped = any(step["skipped"] for step in row)
        merged.append({**row[0], "skipped": skipped, "gradients": gradients})
    return merged


def weighted_sum(
    residuals: Sequence[Mapping[str, Tensor]], weights: Sequence[Fraction]
) -> dict[str, Tensor]:
    """Σ weight·residual per parameter, summed in float64, in the residuals' dtype."""
    sums = {}
    for name, first in residuals[0].items():
        total = torch.zeros_like(first, dtype=torch.float64)
        for residual, weight in zip(residuals, weights, strict=True):
            total.add_(residual[name].double(), alpha=float(weight))
        sums[name] = total.to(first.dtype)
    return sums

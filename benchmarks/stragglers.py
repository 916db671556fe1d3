"""What the slowest worker costs: a model of N workers that wait for each other in every step.

A step of GGS has one place where a fast worker can only wait: the agreement of all workers, one byte, after
the backward pass. So in the model a step takes the longest of the workers' own times, drawn anew in each
step, and the exchange, which comes after it, is no part of it. Nothing here is measured on workers, and no
network takes part: the figures are those of the drawn times alone.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

STEPS = 2000


@dataclass(frozen=True)
class Slowness:
    """How the times of the workers' steps differ; 1 is a worker's step when nothing is in its way."""

    name: str
    jitter: float = 0.0
    """Standard deviation of the logarithm of each worker's time in each step."""
    chance: float = 0.0
    """How often a worker is late in a step, by chance."""
    late: float = 1.0
    """How much longer a late step takes, as a multiple."""
    always: float = 1.0
    """How much longer one worker takes in all steps, as a multiple."""

    def draw(self, workers: int, steps: int) -> Tensor:
        """(steps, workers) times of steps, the same ones on every call."""
        numbers = torch.Generator().manual_seed(workers)
        times = torch.randn(steps, workers, generator=numbers).mul_(self.jitter).exp_()
        is_late = torch.rand(steps, workers, generator=numbers) < self.chance
        times[is_late] *= self.late
        times[:, 0] *= self.always
        return times


CASES = (
    Slowness("all alike, 5 % jitter", jitter=0.05),
    Slowness("1 step in 1000 takes twice as long", jitter=0.05, chance=0.001, late=2.0),
    Slowness("1 step in 100 takes twice as long", jitter=0.05, chance=0.01, late=2.0),
    Slowness("1 worker is always 1.5 times as slow", jitter=0.05, always=1.5),
)


def simulate(case: Slowness, workers: int, steps: int = STEPS) -> dict[str, Any]:
    """Steps of ``workers`` that wait for the slowest.

    Returns ``step``, the mean of a step's time as a multiple of a worker's usual one, its quartiles, and
    ``waiting``, the share of all workers' time that goes to waiting.
    """
    times = case.draw(workers, steps)
    slowest = times.max(dim=1).values
    low, high = slowest.quantile(torch.tensor([0.25, 0.75])).tolist()
    return {
        "case": case.name,
        "workers": workers,
        "step": round(slowest.mean().item(), 3),
        "quartiles": [round(low, 3), round(high, 3)],
        "waiting": round(1 - (times.mean() / slowest.mean()).item(), 3),
    }


def expected_without_jitter(case: Slowness, workers: int) -> float:
    """The mean that ``simulate`` comes near to where nothing jitters: some worker is late, or none is."""
    someone = 1 - math.pow(1 - case.chance, workers)
    return case.always * (1 - someone) + max(case.always, case.late) * someone


def table(workers: list[int]) -> list[dict[str, Any]]:
    """All cases for each number of workers, printed."""
    print(
        "\nWaiting for the slowest, a model with drawn times: a step as a multiple of a usual one"
    )
    print(f"{'':38}{'workers':>8}{'step':>8}{'quartiles':>16}{'waiting':>9}")
    rows = []
    for case in CASES:
        for size in workers:
            row = simulate(case, size)
            low, high = row["quartiles"]
            print(f"{case.name:38}{size:8}{row['step']:8.2f}{low:8.2f}{high:8.2f}"
                  f"{row['waiting']:9.0%}")  # fmt: skip
            rows.append(row)
    return rows

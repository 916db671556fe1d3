"""When the next checkpoint is due, agreed by all workers without asking at every step."""

import time

import torch

from ggs.dist.collectives import Collectives
from ggs.train.duration import Interval

MOST_STEPS = 1000
"""Steps after which the clock is looked at again at the latest."""


class Due:
    """``due(step)``, called after every step on every worker, tells whether to write a checkpoint.

    An interval of wall time is measured by rank 0. The others ask it halfway to when it expects the
    checkpoint, then halfway through the rest, and so on: a few collectives per checkpoint.
    """

    def __init__(
        self,
        interval: Interval,
        steps_per_epoch: int,
        step: int,
        collectives: Collectives,
        device: torch.device,
    ) -> None:
        self._seconds, self._collectives, self._device = interval.seconds, collectives, device
        self._steps = 0 if self._seconds is not None else interval.steps(steps_per_epoch)
        self._last, self._last_step = time.monotonic(), step
        self._next_look = step + 1

    def __call__(self, step: int) -> bool:
        """Whether a checkpoint is due after ``step``; a collective at some steps."""
        if self._seconds is None:
            return step % self._steps == 0
        if step < self._next_look:
            return False
        left = self._steps_left(step, self._seconds)
        if left == 0:
            self._last, self._last_step = time.monotonic(), step
        self._next_look = step + min(max(1, left // 2), MOST_STEPS)
        return left == 0

    def _steps_left(self, step: int, seconds: float) -> int:
        estimate = 0
        if self._collectives.rank == 0:
            passed = time.monotonic() - self._last
            each = passed / (step - self._last_step)
            estimate = min(max(0, int((seconds - passed) / max(each, 1e-6))), 2 * MOST_STEPS)
            if passed < seconds:
                estimate = max(1, estimate)
        steps = torch.tensor([estimate], dtype=torch.int64, device=self._device)
        return int(self._collectives.all_reduce_max_(steps))

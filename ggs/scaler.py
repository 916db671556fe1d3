"""A gradient scaler whose scale stays the same on every worker."""

from typing import Any

import torch

from ggs.wrapper import DistributedOptimizer


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` for float16 training with ``ggs.GGS`` or ``ggs.Dense``.

    An overflow on one worker makes all of them skip the step. torch's own scaler, which works too,
    then backs off on that worker alone; this one backs off on all, so that the scale is one number
    for the whole job.
    """

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """As ``torch.amp.GradScaler.step``; afterwards every worker knows of every overflow."""
        result: float | None = super().step(optimizer, *args, **kwargs)
        if (
            self.is_enabled()
            and isinstance(optimizer, DistributedOptimizer)
            and optimizer.statistics.skipped
        ):
            for found in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
                found.fill_(1.0)
        return result

"""A gradient scaler whose scale stays the same on every worker."""

from typing import Any

import torch

from ggs.optim.base import DistributedOptimizer


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` for float16 training with ``ggs.GGS`` or ``ggs.Dense``.

    An overflow on one worker makes all of them skip the step. torch's own scaler, which works too,
    then backs off on that worker alone; this one backs off on all, so that the scale is one number
    for the whole job. With local steps (``every`` above 1) an overflow is one worker's, who leaves its
    step out, and the scale is each worker's own.
    """

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """As ``torch.amp.GradScaler.unscale_``."""
        self._have_a_scale(optimizer)
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """As ``torch.amp.GradScaler.step``; afterwards every worker knows of every overflow.

        A worker without any gradient takes part; torch's own scaler refuses its ``update()``.
        """
        self._have_a_scale(optimizer)
        result: float | None = super().step(optimizer, *args, **kwargs)
        if self.is_enabled() and isinstance(optimizer, DistributedOptimizer):
            overflows = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
            if not overflows:
                overflows[optimizer.device] = torch.zeros((), device=optimizer.device)
            if optimizer.statistics.skipped:
                for overflow in overflows.values():
                    overflow.fill_(1.0)
        return result

    def _have_a_scale(self, optimizer: torch.optim.Optimizer) -> None:
        """torch makes the scale at the first loss, which a worker without a batch does not have yet."""
        enabled = self.is_enabled()  # else there is none to make
        if enabled and isinstance(optimizer, DistributedOptimizer) and self._scale is None:
            self.scale(torch.ones((), device=optimizer.device))

"""Periodic averaging of the weights: local training, then the mean of all workers' weights."""

import torch
from torch import Tensor, nn

from ggs.dist.lockstep import Worker
from rivals.local_steps import LocalSteps


class PeriodicAveraging(LocalSteps):
    """H local steps of each worker's optimizer, then every weight becomes its mean over the workers.

    Local SGD (S. Stich, ICLR 2019), with any optimizer; its state stays each worker's own. With an outer
    momentum m it is DiLoCo (A. Douillard et al., 2023): the mean drift is a gradient for Nesterov SGD.

    Args:
        optimizer, model, every, process_group: as in ``LocalSteps``.
        outer_lr: of the outer step; 1 for averaging.
        outer_momentum: 0 for averaging; DiLoCo's is 0.9, with ``outer_lr`` 0.7.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        every: int = 1,
        outer_lr: float = 1.0,
        outer_momentum: float = 0.0,
        process_group: Worker | None = None,
    ) -> None:
        outer = {"outer_lr": outer_lr, "outer_momentum": outer_momentum}
        super().__init__(optimizer, model, every, outer, process_group)
        self._outer_lr, self._outer_momentum = outer_lr, outer_momentum
        self._velocity = torch.zeros(self.statistics.numel)

    def _exchange(self, drift: Tensor) -> Tensor:
        mean = self.collectives.all_reduce_sum_(drift).div_(self.collectives.size)
        self._velocity.mul_(self._outer_momentum).add_(mean)
        return self._outer_lr * (mean + self._outer_momentum * self._velocity)

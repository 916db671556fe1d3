"""What methods with local steps share: H steps of each worker's own optimizer, then one exchange."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ggs.checks import check_whole
from ggs.dist.lockstep import Worker
from ggs.optim.base import DistributedOptimizer, HasGradient


class LocalSteps(DistributedOptimizer):
    """Every worker trains alone for ``every`` steps and sends nothing; then all move their common weights.

    A step without an exchange has no check that the workers agree, and ``statistics`` counts exchanges.

    Args:
        optimizer, model, process_group: as in ``ggs.GGS``.
        every: H, at least 1.
        settings: the child's own, which must be equal on all workers.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        every: int,
        settings: dict[str, Any],
        process_group: Worker | None,
    ) -> None:
        check_whole("every", every, least=1)
        super().__init__(
            optimizer, model, {"every": every, **settings}, "dense", 100, process_group
        )
        self._every = every
        self._local_steps = 0
        self._common = [parameter.detach().clone() for _, parameter in self.shared]

    def _step(self, closure: Callable[[], float] | None) -> float | None:
        self._local_steps += 1
        if self._local_steps % self._every == 0:
            return super()._step(closure)
        self.inner.step(closure)
        return None

    @torch.no_grad()
    def _take_step(self, has_gradient: HasGradient, density: float | None) -> int:
        self.inner.step()
        drift = torch.cat(
            [(old - p).view(-1) for old, (_, p) in zip(self._common, self.shared, strict=True)]
        )
        moves = self._exchange(drift).split([old.numel() for old in self._common])
        for old, move, (_, parameter) in zip(self._common, moves, self.shared, strict=True):
            parameter.copy_(old.sub_(move.view_as(old)))
        return self.statistics.numel

    @abstractmethod
    def _exchange(self, drift: Tensor) -> Tensor:
        """What to subtract from the common weights, on every worker the same bits; a collective.

        Args:
            drift: (n,) the common weights less this worker's.
        """

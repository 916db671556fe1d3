"""SparseLoCo: local steps, and sparse coarse updates with an error feedback that forgets."""

import itertools

import torch
from torch import Tensor, nn

from ggs.dist.lockstep import Worker
from ggs.exchange.allgather import AllGather
from ggs.exchange.base import ExchangeTask
from ggs.optim.schedule import exponential_warmup, selected_count
from rivals.local_steps import LocalSteps


class SparseLoCo(LocalSteps):
    """One exchange, after H local steps from the common weights w to each worker's own w_i.

        e = decay·e + (w - w_i)
        send the largest elements of e in every chunk, in few bits;  e = e - (what was sent)
        w = w - outer_lr · (mean of what all workers sent)

    A. Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", 2025. Ours in two things: a
    chunk is a run of 4,096 elements of the whole model, not 64 x 64 of a matrix, and values are coded by
    ``ggs.wire``, whose nearest to the authors' 2 bits are "sign" (1) and "int4" (4).

    Args:
        optimizer, model, every, process_group: as in ``LocalSteps``.
        density: share of a chunk's elements that is sent.
        values: as in ``ggs.GGS``.
        warmup_steps: local steps over which the density falls exponentially from 1. Not the authors'.
        decay: of the error feedback, in an exchange.
        outer_lr: of the outer step.
        chunk: elements that compete with each other.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        every: int = 1,
        density: float = 0.01,
        values: str = "int4",
        warmup_steps: int = 0,
        decay: float = 0.95,
        outer_lr: float = 1.0,
        chunk: int = 4096,
        process_group: Worker | None = None,
    ) -> None:
        settings = {"density": density, "values": values, "warmup_steps": warmup_steps, "decay": decay,
                    "outer_lr": outer_lr, "chunk": chunk}  # fmt: skip
        super().__init__(optimizer, model, every, settings, process_group)
        self._density = exponential_warmup(density, warmup_steps)
        self._decay, self._outer_lr = decay, outer_lr
        numel = self.statistics.numel
        self.residual = torch.zeros(numel)
        """(n,) e, what of this worker the others have not got."""
        self._borders = (*range(0, numel, chunk), numel)
        task = ExchangeTask(self.residual, self._borders, values, lambda indices, values: None)
        self._all_gather = AllGather(self.collectives, task)

    def _exchange(self, drift: Tensor) -> Tensor:
        self.residual.mul_(self._decay).add_(drift)
        density = self._density(self._local_steps - self._every)
        counts = [selected_count(stop - start, density)
                  for start, stop in itertools.pairwise(self._borders)]  # fmt: skip
        total = torch.zeros_like(self.residual)
        for update in self._all_gather.run(counts, self.statistics.step):
            if update.indices is None:
                total += update.values
            else:
                total.index_add_(0, update.indices, update.values)
        return total.mul_(self._outer_lr / self.collectives.size)

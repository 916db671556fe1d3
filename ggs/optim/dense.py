"""The dense baseline: the same contract as ``ggs.GGS``, nothing left out of the exchange."""

import torch
from torch import nn

from ggs.dist.process_group import Group
from ggs.errors import ConfigurationError
from ggs.optim.base import DistributedOptimizer
from ggs.optim.batchnorm import BatchNormMode
from ggs.optim.gradients import average_gradients


class Dense(DistributedOptimizer):
    """A torch optimizer on gradients averaged over all workers, as DistributedDataParallel trains.

    The drop-in baseline for ``ggs.GGS``: the same construction, checks, statistics and state.

    Args:
        optimizer: any ``torch.optim`` optimizer instance over parameters of ``model``.
        model: the plain module.
        batchnorm: how batch-norm layers are kept, see ``ggs.optim.batchnorm``. ``"dense"`` averages their
            gradients like all others.
        clip_norm: limit of the averaged gradient's norm, as if ``clip_grad_norm_`` were called after
            DistributedDataParallel's backward pass; local batch-norm layers count with their own
            gradients, those of the worker where the norm is largest. None for no clipping.
        max_consecutive_skips: so many skipped steps in a row raise NonFiniteError.
        process_group: a ``torch.distributed`` group; None for the default one.

    Raises: as ``ggs.GGS``; ConfigurationError for a ``clip_norm`` that is not above 0.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        batchnorm: BatchNormMode = "dense",
        clip_norm: float | None = None,
        max_consecutive_skips: int = 100,
        process_group: Group | None = None,
    ) -> None:
        if clip_norm is not None and not clip_norm > 0.0:
            raise ConfigurationError(f"clip_norm is {clip_norm}: give a norm above 0, or None")
        self._clip_norm = clip_norm
        super().__init__(
            optimizer,
            model,
            {"batchnorm": batchnorm, "clip_norm": clip_norm},
            batchnorm,
            max_consecutive_skips,
            process_group,
        )

    @torch.no_grad()
    def _take_step(self, has_gradient: dict[nn.Parameter, bool], density: float | None) -> int:
        average_gradients([p for p, has in has_gradient.items() if has], self.collectives)
        if self._clip_norm is not None:
            self._clip(self._clip_norm)
        self.inner.step()
        return self.statistics.numel

    @property
    def agreement_bytes(self) -> list[int]:
        """See ``DistributedOptimizer.agreement_bytes``; to clip, workers agree on a norm, one float64."""
        return super().agreement_bytes + [8] * (self._clip_norm is not None)

    def _clip(self, limit: float) -> None:
        """Scale all gradients by one factor, which must have the same bits on every worker.

        The workers' norms differ by their local batch-norm layers, and where their CPUs have different
        numbers of threads, by the rounding of a sum.
        """
        trained = [p for _, p in [*self.shared, *self._locals]]
        norm = nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
        largest = self.collectives.all_reduce_max_(norm.to(self.device, torch.float64))
        nn.utils.clip_grads_with_norm_(trained, limit, largest.to(norm.dtype))

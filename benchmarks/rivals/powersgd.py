"""PowerSGD: every matrix of the gradient as a product of two thin ones, found by one power iteration."""

from typing import Any

import torch
from torch import Tensor, nn

from ggs.checks import check_whole
from ggs.dist.lockstep import Worker
from ggs.errors import UnsupportedError
from ggs.optim.base import DistributedOptimizer, HasGradient
from ggs.optim.gradients import average_gradients


class PowerSGD(DistributedOptimizer):
    """A torch optimizer on low-rank gradients with error feedback; same numbers as torch's DDP hook.

    One step for each matrix M, a gradient plus what the last step left of it, with Q of the last step:

        orthogonalise Q;  P = sum of all workers' M·Q;  orthogonalise P
        Q = mean of all workers' Mᵀ·P;  the gradient is P·Qᵀ, and M - P·Qᵀ is left for the next step

    T. Vogels et al., "PowerSGD", NeurIPS 2019. Vectors, and matrices of which that would save less than
    half, are averaged whole.

    Args:
        optimizer, model, process_group: as in ``ggs.GGS``.
        rank: columns of P and Q.
        warmup_steps: steps with whole gradients first, torch's ``start_powerSGD_iter``.
        seed: of the first Q, equal on all workers.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        rank: int = 1,
        warmup_steps: int = 0,
        seed: int = 0,
        process_group: Worker | None = None,
    ) -> None:
        check_whole("rank", rank, least=1)
        settings: dict[str, Any] = {"rank": rank, "warmup_steps": warmup_steps, "seed": seed}
        super().__init__(optimizer, model, settings, "dense", 100, process_group)
        self._warmup_steps = warmup_steps
        self.matrices = [p for _, p in self.shared if _is_worth_it(p, rank)]
        self._others = [p for _, p in self.shared if not _is_worth_it(p, rank)]
        generator = torch.Generator().manual_seed(seed)
        self.right = [
            torch.randn(p[0].numel(), min(rank, len(p)), generator=generator, dtype=p.dtype)
            for p in self.matrices
        ]
        """Q of each compressed parameter, (m, rank)."""
        self.error = [torch.zeros(len(p), p[0].numel(), dtype=p.dtype) for p in self.matrices]
        """What the last step left of each compressed gradient, (n, m)."""

    @torch.no_grad()
    def _take_step(self, has_gradient: HasGradient, density: float | None) -> int:
        used = [p for p, has in has_gradient.items() if has]
        if len(used) < len(has_gradient):
            idle = next(name for name, p in self.shared if not has_gradient[p])
            raise UnsupportedError(f"{idle} has no gradient on any worker: freeze it for PowerSGD")
        if self.statistics.step < self._warmup_steps:
            average_gradients(used, self.collectives)
        else:
            average_gradients(self._others, self.collectives)
            self._compress()
        self.inner.step()
        return self.statistics.numel

    def _compress(self) -> None:
        for parameter, error in zip(self.matrices, self.error, strict=True):
            assert parameter.grad is not None
            error += parameter.grad.view_as(error)  # now M
        right = [_orthogonal(q) for q in self.right]
        left = self._summed([m @ q for m, q in zip(self.error, right, strict=True)])
        left = [_orthogonal(p) for p in left]
        self.right = self._summed([m.T @ p for m, p in zip(self.error, left, strict=True)])
        for parameter, error, p, q in zip(self.matrices, self.error, left, self.right, strict=True):
            q /= self.collectives.size
            low_rank = p @ q.T
            error -= low_rank
            assert parameter.grad is not None
            parameter.grad.copy_(low_rank.view_as(parameter))

    def _summed(self, factors: list[Tensor]) -> list[Tensor]:
        """The sums over the workers, in one all-reduce."""
        if not factors:
            return []
        flat = self.collectives.all_reduce_sum_(torch.cat([f.reshape(-1) for f in factors]))
        parts = flat.split([f.numel() for f in factors])
        return [part.view_as(f) for part, f in zip(parts, factors, strict=True)]


def _is_worth_it(parameter: Tensor, rank: int) -> bool:
    """Whether it is a matrix that is more than twice as large as its two factors."""
    if parameter.dim() < 2:
        return False
    n, m = len(parameter), parameter[0].numel()
    return (n + m) * min(rank, n, m) * 2 < n * m


def _orthogonal(matrix: Tensor) -> Tensor:
    """(n, rank) orthonormal columns that span the same; gradients of few samples have fewer dimensions."""
    return torch.linalg.qr(matrix).Q

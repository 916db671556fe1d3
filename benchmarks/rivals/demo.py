"""DeMo: the largest cosine coefficients of a momentum, and a step along the sign of what arrived."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ggs.dist.lockstep import Worker
from ggs.errors import UnsupportedError
from ggs.exchange.allgather import AllGather
from ggs.exchange.base import ExchangeTask
from ggs.optim.base import DistributedOptimizer, HasGradient
from ggs.optim.schedule import selected_count


class DeMo(DistributedOptimizer):
    """Decoupled momentum: every worker keeps its own and sends its fast-moving part.

        m = decay·m + lr·g
        send the largest coefficients of every chunk's cosine transform;  m = m - (what was sent)
        w = w - lr·sign(inverse transform of each coefficient's mean over the workers that sent it)

    B. Peng et al., "DeMo: Decoupled momentum optimization", 2024. A chunk is at most ``chunk`` x ``chunk``
    elements of a matrix, or ``chunk`` of a vector. The transform is linear and keeps lengths, so m is kept
    as coefficients. What travels is coded by ``ggs.wire``, in fewer bytes than the authors' 8 an index.

    Args:
        optimizer: ``torch.optim.SGD`` without momentum, which takes the step.
        model, process_group: as in ``ggs.GGS``.
        density: share of a chunk's coefficients that is sent, at least one; theirs is 32 of 4,096.
        values: as in ``ggs.GGS``.
        decay: of the momentum.
        chunk: longest side of a chunk; the largest divisor of a side up to that is taken.

    Raises UnsupportedError for another optimizer, and for parameters of more than two dimensions.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        *,
        density: float = 32 / 4096,
        values: str = "fp32",
        decay: float = 0.999,
        chunk: int = 64,
        process_group: Worker | None = None,
    ) -> None:
        if not isinstance(optimizer, torch.optim.SGD) or optimizer.defaults["momentum"]:
            raise UnsupportedError(
                f"DeMo has its own momentum and cannot use {optimizer}: give SGD without momentum"
            )
        settings = {"density": density, "values": values, "decay": decay, "chunk": chunk}
        super().__init__(optimizer, model, settings, "dense", 100, process_group)
        self._decay = decay
        self._transforms = [_Transform(p.shape, chunk) for _, p in self.shared]
        self.momentum = torch.zeros(self.statistics.numel)
        """(n,) coefficients, chunk after chunk."""
        borders = [0]
        for transform, (_, parameter) in zip(self._transforms, self.shared, strict=True):
            for _ in range(parameter.numel() // transform.chunk_numel):
                borders.append(borders[-1] + transform.chunk_numel)
        self._counts = [selected_count(stop - start, density)
                        for start, stop in itertools.pairwise(borders)]  # fmt: skip
        task = ExchangeTask(self.momentum, tuple(borders), values, lambda indices, values: None)
        self._all_gather = AllGather(self.collectives, task)

    @torch.no_grad()
    def _take_step(self, has_gradient: HasGradient, density: float | None) -> int:
        rates = {p: group["lr"] for group in self.param_groups for p in group["params"]}
        self.momentum.mul_(self._decay)
        for transform, (_, p), own in self._parts(self.momentum):
            if p.grad is not None:
                own.add_(transform.forward(p.grad), alpha=rates[p])
        total, senders = torch.zeros_like(self.momentum), torch.zeros_like(self.momentum)
        for update in self._all_gather.run(self._counts, self.statistics.step):
            indices = slice(None) if update.indices is None else update.indices
            total[indices] += update.values
            senders[indices] += 1
        total /= senders.clamp_(min=1)
        for transform, (_, p), arrived in self._parts(total):
            p.grad = transform.backward(arrived).sign_()
        self.inner.step()
        return self._all_gather.selected

    def _parts(
        self, flat: Tensor
    ) -> Sequence[tuple["_Transform", tuple[str, nn.Parameter], Tensor]]:
        parts = flat.split([p.numel() for _, p in self.shared])
        return list(zip(self._transforms, self.shared, parts, strict=True))


class _Transform:
    """The cosine transform (orthonormal DCT-II) of every chunk of a tensor of one shape."""

    def __init__(self, shape: Sequence[int], chunk: int) -> None:
        if len(shape) > 2:
            raise UnsupportedError(
                f"DeMo is for vectors and matrices, not for shape {tuple(shape)}"
            )
        rows, columns = (1, *shape) if len(shape) < 2 else tuple(shape)
        self._shape = tuple(shape)
        self._high, self._wide = _divisor(rows, chunk), _divisor(columns, chunk)
        self._blocks = rows // self._high, columns // self._wide
        self._left, self._right = _cosines(self._high), _cosines(self._wide)
        self.chunk_numel = self._high * self._wide

    def forward(self, tensor: Tensor) -> Tensor:
        """(n,) coefficients, chunk after chunk."""
        down, across = self._blocks
        chunks = tensor.reshape(down, self._high, across, self._wide).transpose(1, 2)
        return (self._left @ chunks @ self._right.T).reshape(-1)

    def backward(self, coefficients: Tensor) -> Tensor:
        """The tensor that has these coefficients."""
        chunks = coefficients.view(*self._blocks, self._high, self._wide)
        return (self._left.T @ chunks @ self._right).transpose(1, 2).reshape(self._shape)


def _divisor(length: int, most: int) -> int:
    return max(part for part in range(1, most + 1) if length % part == 0)


def _cosines(size: int) -> Tensor:
    """(size, size): row k is the kth cosine, of length 1."""
    places = torch.arange(size, dtype=torch.float64)
    rows = torch.cos(math.pi / size * torch.outer(places, places + 0.5)) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows.float()

"""Exact selection on CUDA in about one pass and a half over memory.

As on the CPU (`ggs.select.cpu`): candidates above a predicted threshold, and the exact k largest of
these few. The first kernel counts candidates per block; a prefix sum of the counts says where each
block's begin, so that candidates arrive in the order of their indices, without atomics and the same on
every run; the second kernel moves them, and skips blocks without any.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ggs.select.threshold import ThresholdPredictor, sample_sizes, sampled_rank

BLOCK = 2048

_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


@triton.jit(do_not_specialize=["threshold"])  # type: ignore[untyped-decorator]
def _count(
    residual: tl.tensor,
    counts: tl.tensor,
    numel: tl.tensor,
    threshold: tl.tensor,
    INTEGER: tl.constexpr,
    MASK: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    """counts[block] = its magnitudes >= threshold (compared as integers)."""
    block = tl.program_id(0)
    at = block.to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < numel
    values = tl.load(residual + at, mask=inside, other=0.0)
    hits = ((values.to(INTEGER, bitcast=True) & MASK) >= threshold) & inside
    tl.store(counts + block, tl.sum(hits.to(tl.int32), 0))


@triton.jit(do_not_specialize=["threshold"])  # type: ignore[untyped-decorator]
def _move(
    residual: tl.tensor,
    ends: tl.tensor,
    candidates: tl.tensor,
    taken: tl.tensor,
    numel: tl.tensor,
    threshold: tl.tensor,
    INTEGER: tl.constexpr,
    MASK: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    """Moves each block's candidates to positions ends[block - 1] ... ends[block] - 1."""
    block = tl.program_id(0)
    end = tl.load(ends + block)
    begin = tl.load(ends + block - 1, mask=block > 0, other=0)
    if end > begin:
        at = block.to(tl.int64) * SIZE + tl.arange(0, SIZE)
        inside = at < numel
        values = tl.load(residual + at, mask=inside, other=0.0)
        hits = ((values.to(INTEGER, bitcast=True) & MASK) >= threshold) & inside
        position = begin + tl.cumsum(hits.to(tl.int32), 0) - 1
        tl.store(candidates + position, at, mask=hits)
        tl.store(taken + position, values, mask=hits)
        tl.store(residual + at, tl.zeros_like(values), mask=hits)


class TritonSelector:
    """Selects from one segment of `numel` elements; remembers its threshold."""

    def __init__(self, numel: int) -> None:
        self._predictor = ThresholdPredictor(np.array([numel]))

    def select_(self, residual: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
        """See `ggs.select.Selector.select_`; None, and nothing changed, if no threshold was good enough."""
        if residual.numel() == 0 or k == 0:
            return residual.new_empty(0, dtype=torch.int64), residual.new_empty(0)
        predicted, unsure = self._predictor.predict(np.array([k]))
        for attempt in range(2):
            sampling = attempt or unsure[0]
            magnitude = self._sampled(residual, k) if sampling else float(predicted[0])
            # Triton launches on the current device, torch's operators on their tensors' own.
            with torch.cuda.device_of(residual):  # type: ignore[no-untyped-call]
                selection = self._attempt(residual, k, magnitude)
            if selection is not None:
                return selection
        return None

    def _attempt(self, residual: Tensor, k: int, magnitude: float) -> tuple[Tensor, Tensor] | None:
        # Count the candidates of each block: too few, and some are missed; too many, and sorting is slow.
        numel = residual.numel()
        integer = _INTEGERS[residual.dtype]
        mask = int(torch.iinfo(integer).max)
        threshold = int(torch.tensor(magnitude, dtype=residual.dtype).view(integer))
        blocks = triton.cdiv(numel, BLOCK)
        counts = torch.empty(blocks, dtype=torch.int32, device=residual.device)
        constants = (tl.int32 if integer == torch.int32 else tl.int64, mask, BLOCK)
        _count[(blocks,)](residual, counts, numel, threshold, *constants)
        ends = counts.cumsum(0)
        total = int(ends[-1])
        if not k <= total <= 4 * k + 1024:
            return None
        # Move them out, keep the k largest, and put the others back.
        candidates = torch.empty(total, dtype=torch.int64, device=residual.device)
        taken = torch.empty(total, dtype=residual.dtype, device=residual.device)
        _move[(blocks,)](residual, ends, candidates, taken, numel, threshold, *constants)
        # A stable sort keeps equals in the order of their indices, which topk does not.
        order = taken.abs().sort(descending=True, stable=True).indices
        rejected = order[k:]
        residual[candidates[rejected]] = taken[rejected]
        kept = order[:k].sort().values
        least = float(taken[order[k - 1]].abs())
        self._predictor.learn(np.array([0]), np.array([least]))
        return candidates[kept], taken[kept]

    def _sampled(self, residual: Tensor, k: int) -> float:
        """A magnitude that probably somewhat more than k elements reach."""
        length = residual.numel()
        size = int(sample_sizes(length, k))
        part = length // size
        number = torch.arange(size, device=residual.device)
        sample = residual[number * length // size + ((number * 2654435761) >> 9) % part]
        rank = sampled_rank(size, length, k)
        return float(sample.abs().kthvalue(size - rank + 1).values)

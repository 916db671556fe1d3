"""Exact top-k by magnitude over a flat residual, with what is selected taken out of it."""

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ggs.select.cpu import CpuSelector
    from ggs.select.triton import TritonSelector


def select_reference(residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The plain twin of every selection kernel, on any device.

    Args:
        residual: (n,) float32 or float64, finite. Not changed.
        k: how many elements, 0 to n.

    Returns:
        Indices (k,) int64, ascending, and values (k,) of the k largest magnitudes. Of equal
        magnitudes, those with the lowest indices.
    """
    if k == 0:
        return residual.new_empty(0, dtype=torch.int64), residual.new_empty(0)
    magnitude = residual.abs()
    # The k-th magnitude is unique even where topk's choice among equals is not.
    threshold = torch.topk(magnitude, k, sorted=False).values.min()
    above = (magnitude > threshold).nonzero().view(-1)
    equal = (magnitude == threshold).nonzero().view(-1)[: k - above.numel()]
    indices = torch.cat([above, equal]).sort().values
    return indices, residual[indices]


class Selector:
    """Exact top-k by magnitude over one flat residual of `numel` elements.

    It remembers where the last selections ended, which makes the next ones cheap but never changes
    their result: a new Selector gives the same.
    """

    def __init__(self, numel: int) -> None:
        self.numel = numel
        self._by_offsets: dict[tuple[int, ...], CpuSelector] = {}
        self._by_segment: dict[tuple[int, int], TritonSelector] = {}

    def select_(self, residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Takes the k largest magnitudes out of `residual`.

        Args:
            residual: (numel,) contiguous float32 or float64, finite. Selected entries become 0.
            k: how many, 0 to numel.

        Returns:
            Indices (k,) int64, ascending, and values (k,) of the residual's dtype: exactly the k
            largest, of equal magnitudes those with the lowest indices.
        """
        return self.select_segments_(residual, (0, self.numel), (k,))

    def select_segments_(
        self, residual: Tensor, offsets: Sequence[int], counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Takes the counts[i] largest of each segment offsets[i] ... offsets[i + 1] - 1.

        Args:
            residual: (numel,) contiguous float32 or float64, finite.
            offsets: s + 1 of them, from 0 to numel, ascending.
            counts: s of them, each 0 to the length of its segment.

        Returns:
            Indices (sum(counts),) int64 into the whole residual, ascending, and their values.
        """
        if residual.device.type == "cpu":
            return self._cpu(tuple(offsets)).select_(residual, counts)
        parts = []
        for (start, stop), count in zip(pairwise(offsets), counts, strict=True):
            indices, values = self._elsewhere((start, stop), residual[start:stop], count)
            parts.append((indices + start, values))
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _elsewhere(
        self, segment: tuple[int, int], residual: Tensor, k: int
    ) -> tuple[Tensor, Tensor]:
        if residual.device.type == "cuda" and find_spec("triton"):
            from ggs.select.triton import TritonSelector

            kernels = self._by_segment.setdefault(segment, TritonSelector(len(residual)))
            selection = kernels.select_(residual, k)
            if selection is not None:
                return selection
        indices, values = select_reference(residual, k)
        residual[indices] = 0
        return indices, values

    def _cpu(self, offsets: tuple[int, ...]) -> "CpuSelector":
        from ggs.select.cpu import CpuSelector  # numba takes half a second to import

        if offsets not in self._by_offsets:
            self._by_offsets[offsets] = CpuSelector(offsets)
        return self._by_offsets[offsets]

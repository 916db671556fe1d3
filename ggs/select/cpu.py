"""Exact selection on the CPU in about one pass over memory.

A scan moves all elements above a threshold, a little lower than the last step's, out of the
residual; of these few candidates the k largest are kept and the others put back. A threshold that
proves too high or far too low is replaced by one from a sample, and if that fails too (many equal
magnitudes, say) by the exact one from a radix count. Whichever way was taken, the answer is the
same: the threshold only decides how much work it is.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ggs.compiled import run_threads, threads_for
from ggs.select import cpu_kernels as kernels
from ggs.select.threshold import ThresholdPredictor, sample_sizes, sampled_rank

Array = Any  # numpy arrays

SCAN_GRAIN = 1 << 16
"""Elements that are worth waking a thread for."""
FINISH_GRAIN = 1 << 15
SAMPLE_GRAIN = 1 << 12
_INTEGERS = {torch.float32: np.int32, torch.float64: np.int64}


def _cut(done: Array, threads: int) -> list[tuple[int, int]]:
    """Ranges of items for `threads` with about equal work; done[i] is the work before item i."""
    size = len(done) - 1
    if threads == 1:
        return [(0, size)]
    cuts = np.searchsorted(done, np.linspace(0, done[-1], threads + 1)[1:-1])
    return [(a, b) for a, b in pairwise([0, *cuts.tolist(), size]) if a < b]


class _ScanPlan:
    """Who scans what: everything that depends on the segments and counts but not on the numbers.

    The active segments are cut into pieces for the threads: piece p is [lows[p], highs[p]) of segment
    segments[p], with room for candidates at [rooms[p], rooms[p + 1]).
    """

    def __init__(self, offsets: Array, counts: Array, active: Array, threads: int) -> None:
        # Cut at the segments' borders and where equal shares of all elements end.
        share = np.linspace(0, offsets[-1], threads + 1).astype(np.int64)
        edges = np.unique(np.concatenate([offsets, share]))
        segments = np.searchsorted(offsets, edges[:-1], side="right") - 1
        kept = active[segments]
        self.segments, self.lows, self.highs = segments[kept], edges[:-1][kept], edges[1:][kept]
        # A good threshold leaves hardly more candidates than are wanted; all may lie in one piece.
        lengths = self.highs - self.lows
        room = np.minimum(lengths, 4 * counts[self.segments] + 1024)
        self.rooms = np.concatenate([[0], np.cumsum(room)])
        # Which pieces a segment has, and which pieces each thread takes.
        self.pieces = np.searchsorted(self.segments, np.arange(len(counts) + 1))
        done = np.concatenate([[0], np.cumsum(lengths)])
        self.groups = _cut(done, threads)


class CpuSelector:
    """The thresholds of one set of segments, and the memory for candidates."""

    def __init__(self, offsets: Sequence[int]) -> None:
        self.offsets = np.asarray(offsets, dtype=np.int64)
        self.predictor = ThresholdPredictor(np.diff(self.offsets))
        self._plan: tuple[tuple[Any, ...], _ScanPlan] | None = None
        self._candidates = np.empty(0, np.int64)
        self._taken = np.empty(0, np.float32)

    def select_(self, residual: Tensor, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `ggs.select.Selector.select_segments_`."""
        values = residual.detach().numpy()
        integer = _INTEGERS[residual.dtype]
        bits, mask = values.view(integer), integer(np.iinfo(integer).max)
        wanted = np.asarray(counts, dtype=np.int64)
        indices = np.empty(int(wanted.sum()), np.int64)
        selected = np.empty(len(indices), values.dtype)
        selection = _Selection(self, values, bits, mask, wanted, indices, selected)
        active = wanted > 0
        # Where each segment's last selections lead us to look; where nothing is known, a sample.
        predicted, unsure = self.predictor.predict(wanted)
        with np.errstate(over="ignore"):  # infinity is a threshold, too
            thresholds = predicted.astype(values.dtype).view(integer)
        thresholds[~active] = mask
        for s in np.flatnonzero(active & unsure & (wanted < np.diff(self.offsets))).tolist():
            thresholds[s] = selection.sampled_threshold(s)
        failed = selection.attempt(thresholds, active)
        # A useless one is replaced by a sample's, and that by the exact one.
        if failed.any():
            for s in np.flatnonzero(failed).tolist():
                thresholds[s] = selection.sampled_threshold(s)
            failed = selection.attempt(thresholds, failed)
        for s in np.flatnonzero(failed).tolist():
            selection.attempt_exact(s)
        return torch.from_numpy(indices), torch.from_numpy(selected)

    def plan(self, wanted: Array, active: Array) -> _ScanPlan:
        """The plan for these counts; the last one is kept."""
        work = int(np.diff(self.offsets)[active].sum())
        threads = threads_for(work, SCAN_GRAIN)
        key = (threads, active.tobytes(), wanted.tobytes())
        if self._plan is None or self._plan[0] != key:
            self._plan = key, _ScanPlan(self.offsets, wanted, active, threads)
        return self._plan[1]

    def room(self, size: int, dtype: Any) -> tuple[Array, Array]:
        """Memory for `size` candidates. The system backs only what is touched with real memory."""
        held = len(self._candidates)
        if held < size or held > 4 * size or self._taken.dtype != dtype:
            self._candidates, self._taken = np.empty(size, np.int64), np.empty(size, dtype)
        return self._candidates, self._taken


class _Selection:
    """One call of `CpuSelector.select_`."""

    def __init__(
        self,
        owner: CpuSelector,
        values: Array,
        bits: Array,
        mask: Any,
        wanted: Array,
        indices: Array,
        selected: Array,
    ) -> None:
        self.owner, self.values, self.bits, self.mask = owner, values, bits, mask
        self.wanted, self.indices, self.selected = wanted, indices, selected
        self.outputs = np.concatenate([[0], np.cumsum(wanted)])
        self.width = 8 * bits.itemsize - 1

    def attempt(self, thresholds: Array, active: Array) -> Array:
        """Selects from the `active` segments; returns which of them had a useless threshold."""
        plan = self.owner.plan(self.wanted, active)
        candidates, taken = self.owner.room(int(plan.rooms[-1]), self.values.dtype)
        counts = np.zeros(len(plan.segments), np.int64)
        shared = (
            self.values, self.bits, self.mask, thresholds,
            plan.segments, plan.lows, plan.highs, plan.rooms, candidates, taken, counts,
        )  # fmt: skip
        run_threads(kernels.scan, [(*shared, first, last) for first, last in plan.groups])
        return self._finish(plan, thresholds, candidates, taken, counts, active)

    def attempt_exact(self, s: int) -> None:
        """Selects from segment `s`, whatever its numbers are."""
        threshold, quota = self._exact_threshold(s)
        only = np.arange(len(self.wanted)) == s
        plan = self.owner.plan(self.wanted, only)
        candidates, taken = self.owner.room(int(plan.rooms[-1]), self.values.dtype)
        counts = np.zeros(len(plan.segments), np.int64)
        shared = (
            self.values, self.bits, self.mask, threshold, quota,
            plan.lows, plan.highs, plan.rooms, candidates, taken, counts,
        )  # fmt: skip
        run_threads(kernels.take_exact, [(*shared, piece) for piece in range(len(counts))])
        thresholds = np.full(len(only), threshold)
        failed = self._finish(plan, thresholds, candidates, taken, counts, only)
        assert not failed.any()

    def _finish(
        self,
        plan: _ScanPlan,
        thresholds: Array,
        candidates: Array,
        taken: Array,
        counts: Array,
        active: Array,
    ) -> Array:
        """Keeps the largest candidates of each segment; returns which segments had too few or too many."""
        size = len(self.wanted)
        exact = np.empty(size, np.int64)
        shared = (
            self.values, self.mask, thresholds, self.outputs, plan.pieces, plan.rooms, candidates, taken,
            taken.view(self.bits.dtype), counts, self.indices, self.selected, exact,
        )  # fmt: skip
        threads = min(size, threads_for(len(self.indices), FINISH_GRAIN))
        run_threads(kernels.finish, [(*shared, a, b) for a, b in _cut(self.outputs, threads)])
        good = np.flatnonzero(active & (exact >= 0))
        magnitudes = exact[good].astype(self.bits.dtype).view(self.values.dtype)
        self.owner.predictor.learn(good, magnitudes.astype(np.float64))
        return active & (exact < 0)

    def sampled_threshold(self, s: int) -> int:
        """A threshold that probably leaves somewhat more than the wanted candidates."""
        start, stop = (int(edge) for edge in self.owner.offsets[s : s + 2])
        length, k = stop - start, int(self.wanted[s])
        size = int(sample_sizes(length, k))
        sample = np.empty(size, self.values.dtype)
        shared = (self.values, start, stop, size, sample)
        parts = np.linspace(0, size, threads_for(size, SAMPLE_GRAIN) + 1).astype(np.int64).tolist()
        run_threads(kernels.sample, [(*shared, a, b) for a, b in pairwise(parts)])
        rank = sampled_rank(size, length, k)
        threshold = np.partition(sample, size - rank)[size - rank]
        return int(threshold.view(self.bits.dtype))

    def _exact_threshold(self, s: int) -> tuple[Any, int]:
        """The k-th largest magnitude of segment `s`, and how many such are among the k largest."""
        start, stop = (int(edge) for edge in self.owner.offsets[s : s + 2])
        threads = threads_for(stop - start, SCAN_GRAIN)
        bounds = np.linspace(start, stop, threads + 1).astype(np.int64).tolist()
        prefix, top, rank = 0, self.width, int(self.wanted[s])
        while top:  # bits below `top` are unknown; each round counts by the next RADIX_BITS of them
            shift = max(top - kernels.RADIX_BITS, 0)
            bins = np.zeros((threads, 1 << (top - shift)), np.int64)
            run_threads(
                kernels.histogram,
                [
                    (self.bits, self.mask, a, b, prefix, top, shift, bins[t])
                    for t, (a, b) in enumerate(pairwise(bounds))
                ],
            )
            chosen, rank = kernels.descend(bins.sum(0), rank)
            prefix, top = (prefix << (top - shift)) | chosen, shift
        return self.bits.dtype.type(prefix), rank

"""Where to look for candidates: thresholds that follow what was selected before."""

from typing import Any

import numpy as np

Array = Any  # numpy arrays

MARGIN_LEAST, MARGIN_MOST = 0.0002, 0.5
"""How far below the expected threshold to look, as a share of it."""
FORGET = 0.7
"""What a step leaves of the memory of an error."""
TAIL = 8.0
"""Candidates grow with about this power of the distance below the threshold: 7 to 11 for normal
numbers at densities of 0.01 to 0.0001."""
SAMPLE_LEAST, HITS_LEAST, HITS_MOST = 4096, 16.0, 1024.0


class ThresholdPredictor:
    """Predicts the last selected magnitudes of some segments. It decides costs, never results.

    A residual grows by about as much in each step, so what is expected is the last magnitude plus a
    smoothed difference.

    Numbers near the end of their format, and what is not finite, make the expectation overflow: it is
    then infinite or NaN, and a sample takes its place.
    """

    def __init__(self, lengths: Array) -> None:
        """`lengths` (s,) are the segments' numbers of elements."""
        self._lengths = lengths
        self._last = np.full(len(lengths), np.nan)
        """Last magnitude that was selected from each segment; NaN if unknown."""
        self._slope = np.full(len(lengths), np.nan)
        """How much it changes from one step to the next, smoothed."""
        self._error = np.full(len(lengths), np.nan)
        """How far off the expectation lately was at most, as a share of what was selected."""

    @np.errstate(all="ignore")
    def predict(self, counts: Array) -> tuple[Array, Array]:
        """Where to look in each segment, and in which ones a sample knows better.

        Args:
            counts: (s,) how many will be selected from each. With few, a miss costs more than
                candidates do.

        Returns:
            (s,) float64 thresholds, a little lower than the expected magnitudes; and (s,) bool, true
            where nothing is known, or where a sample is less work than the candidates in vain.
        """
        margin = self._error * (2 + 6 / np.sqrt(np.maximum(counts, 1)))
        margin = np.clip(margin, MARGIN_LEAST, MARGIN_MOST)
        expected = np.maximum(self._last + self._slope, self._last / 2)
        in_vain = counts * ((1 - margin) ** -TAIL - 1)
        known = in_vain < sample_sizes(self._lengths, counts)  # not where the error is NaN
        return np.where(known, expected * (1 - margin), 0), ~known

    @np.errstate(all="ignore")
    def learn(self, segments: Array, magnitudes: Array) -> None:
        """Notes the least `magnitudes` selected from `segments` (indices of them)."""
        last, slope = self._last[segments], self._slope[segments]
        difference = magnitudes - last
        off = np.abs(difference - slope)
        error = np.where(off < magnitudes, off / np.where(magnitudes > 0, magnitudes, 1), 1)
        error = np.where(np.isnan(off), np.nan, error)
        self._error[segments] = np.fmax(error, FORGET * self._error[segments])
        self._slope[segments] = np.where(np.isnan(slope), difference, (slope + difference) / 2)
        self._last[segments] = magnitudes


def sample_sizes(lengths: Array, counts: Array) -> Array:
    """How many elements of each segment a sample should have: the least work in all.

    More hits in the sample cost more reading; fewer leave more candidates in vain, about
    4 / sqrt(hits) of the count.
    """
    counts = np.maximum(counts, 1)
    hits = np.clip((2 * counts * counts / np.maximum(lengths, 1)) ** (2 / 3), HITS_LEAST, HITS_MOST)
    sizes = np.maximum(SAMPLE_LEAST, hits * lengths / counts)
    return np.minimum(sizes, lengths).astype(np.int64)


def sampled_rank(size: int, length: int, k: int) -> int:
    """Which of `size` sampled magnitudes, counted from the largest, to use as a threshold.

    The k largest of `length` elements reach it in all but a few cases in 100,000, with hardly more
    candidates than necessary.
    """
    if size == length:
        return k
    expected = size * k / length
    return min(int(expected + 4 * expected**0.5) + 3, size)

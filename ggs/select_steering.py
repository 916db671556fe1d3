"""Where to look for candidates: thresholds that follow what was selected before."""

from typing import Any

import numpy as np

Array = Any  # numpy arrays

MARGIN_LEAST, MARGIN_MOST = 0.003, 0.5
"""How far below the expected threshold to look, as a share of it."""


class Steering:
    """Expected last selected magnitudes of some segments. It decides costs, never results."""

    def __init__(self, size: int) -> None:
        self._last = np.full(size, np.nan)
        """Last magnitude that was selected from each segment; NaN if unknown."""
        self._trend = np.ones(size)
        """How the last such magnitude compares with the one before, smoothed."""
        self._error = np.full(size, 0.02)
        """How far off the trend was, smoothed."""

    @property
    def known(self) -> Array:
        """(size,) bool: which segments have been selected from."""
        return np.isfinite(self._last)

    def thresholds(self, counts: Array) -> Array:
        """(size,) float64, a little lower than the expected magnitudes; 0 where unknown.

        `counts` (size,) are how many will be selected: with few, a miss costs more than candidates.
        """
        errors = 3 + 12 / np.sqrt(np.maximum(counts, 1))
        margin = np.clip(errors * self._error, MARGIN_LEAST, MARGIN_MOST)
        return np.where(self.known, self._last * self._trend * (1 - margin), 0)

    def learn(self, segments: Array, magnitudes: Array) -> None:
        """Notes the least `magnitudes` selected from `segments` (indices of them)."""
        trend = self._trend[segments]
        # Growth by more than 2 says no more than 2 does, and may not even be a number.
        last = np.maximum(self._last[segments], magnitudes / 2)
        usual = (self._last[segments] > 0) & (magnitudes > 0)
        growth = np.maximum(np.where(usual, magnitudes, 1) / np.where(usual, last, 1), 0.5)
        self._error[segments] += 0.2 * (np.abs(growth - trend) - self._error[segments])
        self._trend[segments] += 0.2 * (growth - trend)
        self._last[segments] = magnitudes


def sampled_rank(size: int, length: int, k: int) -> int:
    """Which of `size` sampled magnitudes, counted from the largest, to use as a threshold.

    The k largest of `length` elements reach it in all but a few cases in 100,000, with hardly more
    candidates than necessary.
    """
    if size == length:
        return k
    expected = size * k / length
    return min(int(expected + 4 * expected**0.5) + 3, size)

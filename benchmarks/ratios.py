"""Ratios of times that were taken in turns: quartiles, and whether the machine was too busy to tell."""

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OTHERS_MOST = 0.10
"""Share of the machine's processor time that other processes may take."""
SPREAD_MOST = 0.25
"""Distance between the quartiles of the unit's own times, as a share of their median."""


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile; of a single value, three times that."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratio_row(times: Sequence[float], unit: Sequence[float], prefix: str = "") -> dict[str, Any]:
    """What a row says of ``times`` (seconds of each round) against ``unit``'s in the same rounds."""
    low, middle, high = quartiles([a / b for a, b in zip(times, unit, strict=True)])
    return {
        f"{prefix}ratio": round(middle, 3),
        f"{prefix}ratio_quartiles": [round(low, 3), round(high, 3)],
    }


def seconds_row(times: Sequence[float]) -> dict[str, Any]:
    """What a row says of the seconds of each round."""
    low, middle, high = quartiles(times)
    return {"seconds": float(f"{middle:.4g}"),
            "seconds_quartiles": [float(f"{low:.4g}"), float(f"{high:.4g}")]}  # fmt: skip


class Neighbours:
    """What other processes take of this machine's processors, from when the object is made."""

    def __init__(self) -> None:
        self._start = _busy_seconds(), time.process_time(), time.perf_counter()

    def share(self) -> float | None:
        """Of all cores' time until now, 0 to 1; None where the system does not tell."""
        busy, started = _busy_seconds(), self._start
        if busy is None or started[0] is None:
            return None
        own = time.process_time() - started[1]
        wall = time.perf_counter() - started[2]
        return min(1.0, max(0.0, (busy - started[0] - own) / (wall * (os.cpu_count() or 1))))


def too_busy(unit: Sequence[float], others: float | None = None) -> str | None:
    """Why the ratios to ``unit`` (seconds of each round) say little; None if they can be trusted.

    Args:
        others: share of the processors that other processes took, see ``Neighbours``.
    """
    if others is not None and others > OTHERS_MOST:
        return f"other processes took {others:.0%} of the processors"
    low, middle, high = quartiles(unit)
    if high - low > SPREAD_MOST * middle:
        return f"the unit's own quartiles are {(high - low) / middle:.0%} of its median apart"
    return None


def _busy_seconds() -> float | None:
    """Seconds that all cores together have worked since the start of the machine."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return None
    ticks = [int(word) for word in words[1:9]]
    idle = ticks[3] + ticks[4]  # waiting for a disk is idle too
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")

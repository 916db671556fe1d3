"""Exact selection against one `residual.add_(update)` on the same buffers, and against what peers do.

    python benchmarks/selection.py [--numel 61000000] [--density 0.001] [--device cpu|cuda]

Every method sees the same sequence of updates, which changes from step to step: layers of different
scale, heavy tails, a slow drift of the scale and a part that persists. All methods take turns within
each round, so that a neighbour's load hits all of them alike; a row is the median over the rounds,
as is the ratio. The last line is JSON: `select_ratio` (select, clear), `with_encode_ratio` (select, clear,
encode as fp32), each with its quartiles, `exact` (1 if every selection equalled `torch.topk`'s), `too_busy`
(why the ratios say little, or null).
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from ratios import Neighbours, quartiles, ratio_row, too_busy
from torch import Tensor

from ggs import wire
from ggs.select import Selector

LAYERS = 24


class Updates:
    """Updates of layers with different scales: a part that stays, and heavy-tailed noise.

    The noise is one field, put at another offset in every step, so that its distribution is steady
    and its coordinates are not; its scale drifts and jitters as a loss does.
    """

    def __init__(self, numel: int, device: str) -> None:
        generator = torch.Generator(device).manual_seed(0)
        self._steady = torch.empty(numel, device=device).normal_(generator=generator)
        self._noise = torch.empty(numel, device=device).normal_(generator=generator)
        self._noise *= self._noise.abs() ** 0.5
        cuts = torch.linspace(0, numel, LAYERS + 1).long().tolist()
        scales = torch.rand(LAYERS, generator=torch.Generator().manual_seed(1)) * 2 + 0.2
        for start, stop, scale in zip(cuts, cuts[1:], scales.tolist(), strict=False):
            self._steady[start:stop] *= scale * 1e-4
        self._scales = (cuts, scales.tolist())

    def fill(self, update: Tensor, step: int) -> None:
        """Writes the update of one step."""
        generator = torch.Generator().manual_seed(step)
        jitter = 1 + 0.03 * torch.randn(1, generator=generator).item()
        offset = int(torch.randint(update.numel(), (1,), generator=generator))
        update.copy_(torch.roll(self._noise, offset))
        cuts, scales = self._scales
        for start, stop, scale in zip(cuts, cuts[1:], scales, strict=False):
            update[start:stop] *= scale * 1e-3 * jitter * 0.999**step
        update.add_(self._steady)


def sampled_threshold(residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Deep Gradient Compression: the threshold from a 1 % sample; about k elements, not exactly."""
    magnitude = residual.abs()
    positions = torch.randint(residual.numel(), (residual.numel() // 100,), device=residual.device)
    sample = magnitude[positions]
    threshold = torch.topk(sample, max(1, k // 100)).values[-1]
    indices = (magnitude >= threshold).nonzero().view(-1)
    values = residual[indices]
    residual[indices] = 0
    return indices, values


def compare_nonzero(residual: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """A known threshold, compare and nonzero: not exact either."""
    indices = (residual.abs() >= threshold).nonzero().view(-1)
    values = residual[indices]
    residual[indices] = 0
    return indices, values


def plain_topk(residual: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """What most published codes do."""
    indices = torch.topk(residual.abs(), k).indices
    values = residual[indices]
    residual[indices] = 0
    return indices, values


def measure(
    numel: int, density: float, device: str, rounds: int
) -> tuple[dict[str, list[float]], bool]:
    """Seconds of each method in each round, and whether all selections were exact."""
    k = round(numel * density)
    updates = Updates(numel, device)
    update, residual = torch.empty(numel, device=device), torch.zeros(numel, device=device)
    start, threshold = torch.empty_like(residual), 0.0
    selectors = {name: Selector(numel) for name in ("alone", "encode")}
    message = torch.empty(wire.message_size(numel, k, "fp32"), dtype=torch.uint8, device=device)

    def encoded() -> tuple[Tensor, Tensor]:
        found = selectors["encode"].select_(residual, k)
        wire.encode(*found, numel, "fp32", out=message)
        return found

    methods: dict[str, tuple[bool, Callable[[], object]]] = {
        "add_": (True, lambda: residual.add_(update)),
        "select + clear": (False, lambda: selectors["alone"].select_(residual, k)),
        "select + clear + encode": (False, encoded),
        "compare + nonzero, threshold known": (False, lambda: compare_nonzero(residual, threshold)),
        "sampled threshold (DGC)": (False, lambda: sampled_threshold(residual, k)),
        "torch.topk": (False, lambda: plain_topk(residual, k)),
    }
    times: dict[str, list[float]] = {name: [] for name in methods}
    exact = True
    for step in range(rounds + 2):
        updates.fill(update, step)
        start.copy_(residual)
        summed = start + update
        truth = torch.topk(summed.abs(), k).indices.sort().values
        threshold = summed[truth].abs().min().item()
        for name, (adds, method) in methods.items():
            if step < 2 and name == "torch.topk":
                continue
            residual.copy_(start if adds else summed)
            if device == "cuda":
                torch.cuda.synchronize()
            before = time.perf_counter()
            found = method()
            if device == "cuda":
                torch.cuda.synchronize()
            if step >= 2:  # compiles, and finds the first threshold, before that
                times[name].append(time.perf_counter() - before)
            if "select +" in name:
                assert isinstance(found, tuple)
                exact = exact and torch.equal(found[0], truth)
        residual.copy_(summed)
        residual[truth] = 0
    return times, exact


def result(times: dict[str, list[float]], exact: bool, others: float | None) -> dict[str, Any]:
    """The figures by name; ``others`` is the share of the processors that other processes took."""
    unit = times["add_"]
    return {
        **ratio_row(times["select + clear"], unit, "select_"),
        **ratio_row(times["select + clear + encode"], unit, "with_encode_"),
        "exact": int(exact),
        "too_busy": too_busy(unit, others),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numel", type=int, default=61_000_000)
    parser.add_argument("--density", type=float, default=0.001)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    neighbours = Neighbours()
    times, exact = measure(options.numel, options.density, options.device, options.rounds)
    figures = result(times, exact, neighbours.share())
    print(
        f"n = {options.numel:,}, density {options.density}, {options.device}, "
        f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'':40}{'ms':>9}{'x add_':>9}{'quartiles':>18}")
    for name, seconds in times.items():
        low, middle, high = quartiles([a / b for a, b in zip(seconds, times["add_"], strict=True)])
        print(f"{name:40}{statistics.median(seconds) * 1e3:9.2f}{middle:9.2f}{low:9.2f}{high:9.2f}")
    if figures["too_busy"]:
        print(f"too busy to tell: {figures['too_busy']}")
    shape = {"numel": options.numel, "density": options.density, "device": options.device}
    print(json.dumps({**shape, **figures}))


if __name__ == "__main__":
    main()

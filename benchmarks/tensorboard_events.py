"""What TensorBoard events cost: steps per second while they are written, against while they are not.

    python benchmarks/tensorboard_events.py --blocks 40

LeNet-5, whose step is the shortest, on the MNIST images of the package, one worker, one run: of every two
blocks of 100 steps one writes its events as ``ggs train`` does by default, a line every 10 steps, and one
writes none. The last line is JSON: ``throughput_ratio`` is the median over the pairs of (seconds without) /
(seconds with), ``quartiles`` says how much that varies, ``cpu_ratio`` is the same for the processor time of
all threads; ``row_ms`` is what the training thread itself waits for one line's events, in milliseconds.
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ggs.train import tensorboard, worker
from ggs.train.arguments import build
from ggs.train.config import TrainConfig

BLOCK = 100
"""Steps."""


class Alternating(tensorboard.Events):
    """Writes the events of every other block, and notes the time where blocks begin."""

    last: "Alternating"

    def __init__(self, run_dir: Path, done: int) -> None:
        super().__init__(run_dir, done)
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.rows: list[float] = []
        Alternating.last = self

    def train(self, row: Mapping[str, Any]) -> None:
        """As the trainer calls it."""
        if len(self.wall) % 2 == 1:
            started = time.perf_counter()
            super().train(row)
            self.rows.append(time.perf_counter() - started)
        if row["step"] % BLOCK == 0:
            self.wall.append(time.perf_counter())
            self.cpu.append(time.process_time())


def main() -> int:
    """Train, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--blocks", type=int, default=40, help=f"of {BLOCK} steps, with and without"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    tensorboard.Events = Alternating  # type: ignore[misc]  # what the worker opens
    with tempfile.TemporaryDirectory() as folder:
        steps = (2 * options.blocks + 2) * BLOCK  # the first block compiles and warms up
        settings = {
            "steps": steps,
            "device": "cpu",
            "evaluate_every": 0,
            "run_dir": f"{folder}/run",
        }
        worker.train(build(TrainConfig, settings), torch.device("cpu"), None)
    found = Alternating.last
    ratios = {}
    for name, times in (("wall", found.wall), ("cpu", found.cpu)):
        blocks = [end - begin for begin, end in itertools.pairwise(times)]
        ratios[name] = [b / a for a, b in zip(blocks[::2], blocks[1::2], strict=False)]
    low, middle, high = statistics.quantiles(ratios["wall"], n=4)
    print(
        json.dumps(
            {
                "throughput_ratio": round(middle, 4),
                "quartiles": [round(low, 4), round(high, 4)],
                "cpu_ratio": round(statistics.median(ratios["cpu"]), 4),
                "row_ms": round(1000 * statistics.median(found.rows), 3),
                "step_ms": round(1000 * (found.wall[-1] - found.wall[0]) / (steps - BLOCK), 2),
                "pairs": len(ratios["wall"]),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

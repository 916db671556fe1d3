"""What checkpoints cost: steps per second with a checkpoint every 100 steps, against none.

    python benchmarks/checkpoint.py --checkpoints 20

CifarNet on random images the size of CIFAR-10's, two workers in two processes, a checkpoint every 200 steps
of one run: of every 200 steps, the first 100 carry the whole cost of a checkpoint and the next 100 none.
(Two runs would differ more by what else the machine does.) The last line is JSON: ``throughput_ratio`` is
the median over the checkpoints of (seconds of 100 steps without) / (seconds of the 100 steps with it),
``quartiles`` says how much that varies; ``cpu_ratio`` is the same for the processor time of all threads
(with as many workers as cores, the background's work is the training's loss);
``stall_ms_per_checkpoint`` is what the training thread itself waits; ``replica_check_ms`` is one comparison
of the replicas.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ggs.dist.process_group import connect
from ggs.dist.replicas import check_replicas
from ggs.train import models, seeds
from ggs.train.arguments import build
from ggs.train.checkpoint.checkpointer import Checkpointer
from ggs.train.config import TrainConfig
from ggs.train.image_set import DataSpec, TensorImages
from ggs.train.loop import RunPlan, Trainer
from ggs.train.optimizers import build_optimizer, distribute

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
EVERY = 100


class Timed(Checkpointer):
    """Notes the time every ``EVERY`` steps, just before the checkpoint that may be due there."""

    def __init__(self, directory: Path, trainer: Trainer, group: dist.ProcessGroup) -> None:
        super().__init__(directory, trainer, group)
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def after_step(self) -> None:
        """As the trainer calls it."""
        if self._trainer.state.step % EVERY == 0:
            self.wall.append(time.perf_counter())
            self.cpu.append(time.process_time())
        super().after_step()


def run(folder: Path, checkpoints: int, batch: int) -> dict[str, Any]:
    """Train through so many checkpoints; what the halves with and without them took, on this worker."""
    steps = (2 * checkpoints + 2) * EVERY
    config = build(
        TrainConfig,
        {
            "model": "cifarnet", "data": "cifar10", "steps": steps, "batch_size": batch,
            "evaluate_every": 0, "log_every": 50, "device": "cpu", "check_replicas_every": 0,
            "checkpoint_dir": str(folder), "checkpoint_every": f"{2 * EVERY} steps",
        },
    )  # fmt: skip
    spec = DataSpec(3, 32, 10, (0.5,) * 3, (0.25,) * 3)
    count = EVERY * batch * WORKERS  # an epoch is as long as a half
    numbers = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=numbers)
    labels = torch.randint(0, 10, (count,), generator=numbers)
    images = TensorImages(pixels, labels, config, spec, torch.device("cpu"))
    plan = RunPlan.of(config, len(images), WORKERS)
    torch.manual_seed(seeds.derive(0, seeds.WEIGHTS))
    model = models.build(config.model, 10, 3, 32, {})
    optimizer = distribute(config, build_optimizer(config, model.parameters()), model, 0, None)
    trainer = Trainer(
        config, plan, model, optimizer, (images, images), connect(), torch.device("cpu")
    )
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    checkpointer = Timed(folder, trainer, group)
    trainer.after_step = checkpointer.after_step
    trainer.run()
    checkpointer.finish()
    started = time.perf_counter()
    check_replicas(optimizer.shared, trainer.collectives, steps)
    check = time.perf_counter() - started
    # The first note is after EVERY steps without a checkpoint: what begins there warms up.
    halves = {
        name: [end - begin for begin, end in itertools.pairwise(times[1:])]
        for name, times in (("wall", checkpointer.wall), ("cpu", checkpointer.cpu))
    }
    return {**halves, "stall": checkpointer.seconds / (checkpoints + 1), "check": check}


def worker(options: argparse.Namespace) -> None:
    """One of the workers; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory(dir=options.folder) as own:
        shared: list[Any] = [own]
        dist.broadcast_object_list(shared)
        found = run(Path(shared[0]), options.checkpoints, options.batch)
        dist.barrier()
    if dist.get_rank() == 0:
        report(found, options)
    dist.destroy_process_group()


def report(found: dict[str, Any], options: argparse.Namespace) -> None:
    """Print the figures."""
    ratios = {
        name: [b / a for a, b in zip(found[name][::2], found[name][1::2], strict=False)]
        for name in ("wall", "cpu")
    }
    low, middle, high = statistics.quantiles(ratios["wall"], n=4)
    print(
        json.dumps(
            {
                "throughput_ratio": round(middle, 4),
                "quartiles": [round(low, 4), round(high, 4)],
                "cpu_ratio": round(statistics.median(ratios["cpu"]), 4),
                "stall_ms_per_checkpoint": round(1000 * found["stall"], 2),
                "step_ms": round(1000 * statistics.median(found["wall"][1::2]) / EVERY, 2),
                "replica_check_ms": round(1000 * found["check"], 2),
                "checkpoints": len(ratios["wall"]),
                "every": EVERY,
                "batch_size": options.batch,
                "workers": WORKERS,
            }
        )
    )


def main() -> int:
    """Start the workers, or be one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoints", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="images per worker and step")
    parser.add_argument("--folder", help="where to write; unset: the system's temporary folder")
    options = parser.parse_args()
    if "RANK" in os.environ:
        worker(options)
        return 0
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={WORKERS}", __file__, *sys.argv[1:]]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

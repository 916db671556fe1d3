"""What checkpoints cost: steps per second with a checkpoint every 100 steps, against none.

    python benchmarks/checkpoint.py --pairs 5

CifarNet on random images the size of CIFAR-10's, two workers in two processes. Runs with and without
checkpoints alternate in pairs, so that a machine that does other things slows both. The last line is JSON:
``throughput_ratio`` is the median over the pairs of (steps/s with) / (steps/s without), whole wall time of
the loop, the wait for the last checkpoint included; ``cpu_ratio`` is the same for the processor time of all
threads, which other programs on the machine disturb less (with as many workers as cores, the background's
work is the training's loss); ``stall_ms_per_checkpoint`` is what the training thread
itself waits; ``replica_check_ms`` is one comparison of the replicas.
"""

import argparse
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

from ggs.collectives import Collectives
from ggs.replicas import check_replicas
from ggs.train import models, seeds
from ggs.train.arguments import build
from ggs.train.checkpoint.checkpointer import Checkpointer
from ggs.train.config import TrainConfig
from ggs.train.data import DataSpec, TensorImages
from ggs.train.optimizers import build_optimizer, distribute
from ggs.train.trainer import Plan, Trainer

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
EVERY = 100


def run(folder: Path, steps: int, batch: int, checkpoints: bool) -> dict[str, float]:
    """Train ``steps`` steps; seconds of the loop and of waiting for checkpoints, on this worker."""
    config = build(
        TrainConfig,
        {
            "model": "cifarnet", "data": "cifar10", "steps": steps, "batch_size": batch,
            "evaluate_every": 0, "log_every": 50, "device": "cpu", "check_replicas_every": 0,
            "checkpoint_dir": str(folder) if checkpoints else None,
            "checkpoint_every": f"{EVERY} steps" if checkpoints else None,
        },
    )  # fmt: skip
    spec = DataSpec(3, 32, 10, (0.5,) * 3, (0.25,) * 3)
    numbers = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (4096, 3, 32, 32), dtype=torch.uint8, generator=numbers)
    labels = torch.randint(0, 10, (4096,), generator=numbers)
    images = TensorImages(pixels, labels, config, spec, 3, torch.device("cpu"))
    plan = Plan.of(config, len(images), WORKERS)
    torch.manual_seed(seeds.derive(0, seeds.WEIGHTS))
    model = models.build(config.model, 10, 3, 32, {})
    optimizer = distribute(config, build_optimizer(config, model.parameters()), model, 0, None)
    trainer = Trainer(
        config, plan, model, optimizer, (images, images), Collectives(), torch.device("cpu")
    )
    if checkpoints:
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        trainer.checkpointer = Checkpointer(folder, trainer, group)
    dist.barrier()
    started, cpu = time.perf_counter(), time.process_time()
    trainer.run()
    if trainer.checkpointer:
        trainer.checkpointer.finish()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    started = time.perf_counter()
    check_replicas(optimizer.shared, trainer.collectives, steps)
    check = time.perf_counter() - started
    stall = trainer.checkpointer.seconds if trainer.checkpointer else 0.0
    return {"seconds": seconds, "stall": stall, "check": check, "cpu": cpu}


def worker(options: argparse.Namespace) -> None:
    """All pairs, on one of the workers; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as own:
        shared: list[Any] = [own]
        dist.broadcast_object_list(shared)
        for number in range(options.pairs + 1):  # the first warms up
            found = {}
            for checkpoints in (number % 2 == 0, number % 2 == 1):
                folder = Path(shared[0]) / str(number)
                found[checkpoints] = run(folder, options.steps, options.batch, checkpoints)
            if number:
                pairs.append((found[False], found[True]))
        dist.barrier()
    if dist.get_rank() == 0:
        report(pairs, options)
    dist.destroy_process_group()


def report(
    pairs: list[tuple[dict[str, float], dict[str, float]]], options: argparse.Namespace
) -> None:
    """Print the figures."""
    ratios = [without["seconds"] / with_["seconds"] for without, with_ in pairs]
    written = options.steps / EVERY
    stalls = [1000 * with_["stall"] / written for _, with_ in pairs]
    print(
        json.dumps(
            {
                "throughput_ratio": round(statistics.median(ratios), 4),
                "cpu_ratio": round(statistics.median(a["cpu"] / b["cpu"] for a, b in pairs), 4),
                "ratios": [round(ratio, 4) for ratio in ratios],
                "stall_ms_per_checkpoint": round(statistics.median(stalls), 2),
                "step_ms": round(
                    1000 * statistics.median(p["seconds"] for p, _ in pairs) / options.steps, 2
                ),
                "replica_check_ms": round(
                    1000 * statistics.median(p["check"] for p, _ in pairs), 2
                ),
                "every": EVERY,
                "steps": options.steps,
                "batch_size": options.batch,
                "workers": WORKERS,
            }
        )
    )


def main() -> int:
    """Start the workers, or be one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
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

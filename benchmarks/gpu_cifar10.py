"""DenseNet-121 on images like CIFAR-10's with Adam, dense and GGS, as many epochs as fit: part of gpu.py."""

import argparse
import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gpu import Results

ROOT = Path(__file__).resolve().parent.parent
METHODS = ("dense", "ggs")
EPOCHS = 30
WORKERS, BATCH = 2, 64
RESERVE = 15
"""Seconds of the budget for stopping the two trainings and reading their records."""


def train(options: argparse.Namespace, results: "Results") -> None:
    """Half of the time for each method; each goes on from its last checkpoint."""
    folder = options.out.with_suffix(".cifar10")
    data_dir = options.data_dir
    if options.dry_run:
        data_dir = folder / "images"
        write_images(data_dir)
    if data_dir is None:
        results.write("cifar10", "data", skipped="no --data-dir: nothing to train on")
        return
    end = time.monotonic() + options.seconds - (0 if options.dry_run else RESERVE)
    for turn, method in enumerate(METHODS):
        seconds = (end - time.monotonic()) / (len(METHODS) - turn)
        run = folder / method
        if not (run / "summary.json").exists():
            train_for(seconds, command(method, run, data_dir, options.dry_run))
        results.write("cifar10", method, workers=WORKERS, **record(run))


def command(method: str, run: Path, data_dir: Path, tiny: bool) -> list[str]:
    """The training's command line."""
    settings = {
        "model": "cifarnet" if tiny else "densenet121", "optimizer": "adam", "method": method,
        "density": 0.001, "workers": WORKERS, "batch-size": 4 if tiny else BATCH,
        "device": "cpu" if tiny else "cuda", "data-dir": data_dir, "run-dir": run,
        "checkpoint-dir": run / "checkpoints", "checkpoint-every": "1 epoch",
        "keep-checkpoints": 1, "epochs": 1 if tiny else EPOCHS, "evaluate-every": "1 epoch",
        "log-every": 1 if tiny else 50,
    }  # fmt: skip
    if (data_dir / "cifar-10-batches-py").is_dir():
        settings |= {"data": "cifar10"}
    else:
        settings |= {"data": "imagefolder", "image-size": 32, "in-memory": True}
    flags = [f"--{name}={value}" for name, value in settings.items() if value is not True]
    flags += [f"--{name}" for name, value in settings.items() if value is True]
    return [sys.executable, str(ROOT / "entrypoint.py"), *flags]


def train_for(seconds: float, words: list[str]) -> None:
    """Train until it ends or the time is up. Raises CalledProcessError where it ends badly."""
    process = subprocess.Popen(words, stdout=sys.stderr)
    try:
        status = process.wait(max(seconds, 1))
    except subprocess.TimeoutExpired:
        process.terminate()  # what it has learnt since its last checkpoint is lost
        with suppress(subprocess.TimeoutExpired):
            process.wait(RESERVE / 3)
        process.kill()
        return
    if status:
        raise subprocess.CalledProcessError(status, words)


def record(run: Path) -> dict[str, Any]:
    """What a training has reached, from the file that it writes."""
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    row: dict[str, Any] = {"finished": (run / "summary.json").exists()}
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    row["curve"] = [[r["epoch"], round(r["top1"], 2)] for r in evaluations]
    if steps := [row for row in rows if row["kind"] == "train"]:
        row |= {name: steps[-1][name] for name in ("epoch", "step", "loss", "seconds")}
        row["images_per_second"] = steps[-1]["samples_per_second"]
        row["bytes_sent"] = steps[-1]["bytes_sent"]
    return row


def write_images(folder: Path) -> None:
    """Two classes of eight images each of CIFAR-10's size, for the dry run."""
    from torchvision.io import write_png

    numbers = torch.Generator().manual_seed(0)
    for part in ("train", "test"):
        for label in ("bright", "dark"):
            (folder / part / label).mkdir(parents=True, exist_ok=True)
            for number in range(8):
                image = torch.randint(0, 128, (3, 32, 32), generator=numbers)
                image += 128 * (label == "bright")
                write_png(image.to(torch.uint8), str(folder / part / label / f"{number}.png"))

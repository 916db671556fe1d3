"""What a TensorBoard shows of a run, read back with TensorBoard's own reader."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ggs.dist.clock import Clock, Phase
from ggs.train.arguments import build
from ggs.train.config import TrainConfig
from ggs.train.data import load, spec
from ggs.train.image_set import ImageSet
from ggs.train.loop import Trainer
from ggs.train.worker import train
from tests.worker_pool import WorkerPool

pytest.importorskip("tensorboard")
CPU = torch.device("cpu")


def config_for(folder: Path, **settings: Any) -> TrainConfig:
    values = {"run_dir": folder, "steps": 6, "evaluate_every": "3 steps", "log_every": 2}
    return build(TrainConfig, {**values, "device": "cpu", **settings})


def run(rank: int, size: int, config: TrainConfig) -> None:
    train(config, CPU, None)


def scalars(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(run_dir / "tensorboard"))
    reader.Reload()
    return {
        tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]
    }


def rows(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def test_tensorboard_has_what_the_record_has(tmp_path: Path, workers: WorkerPool) -> None:
    workers.run(2, run, config_for(tmp_path, density=0.01, density_warmup=0))
    found = scalars(tmp_path)
    log, tests = rows(tmp_path, "train"), rows(tmp_path, "evaluation")
    for tag, source, name in (
        ("loss/training", log, "loss"),
        ("training/learning rate", log, "lr"),
        ("training/skipped steps", log, "skipped_steps"),
        ("exchange/density", log, "density"),
        ("exchange/bytes sent per step", log, "bytes_sent"),
        ("exchange/residual norm", log, "residual_norm"),
        ("loss/test", tests, "loss"),
        ("top-1/test", tests, "top1"),
    ):
        steps, values = zip(*found[tag], strict=True)
        assert list(steps) == [row["step"] for row in source]
        assert values == pytest.approx([row[name] for row in source])
    assert [row["step"] for row in log] == [2, 4, 6]
    assert log[-1]["residual_norm"] > log[0]["residual_norm"] > 0


def test_the_shares_of_a_step_are_the_whole_step(tmp_path: Path, workers: WorkerPool) -> None:
    workers.run(2, run, config_for(tmp_path, density=0.1, density_warmup=0))
    found = scalars(tmp_path)
    shares = [
        found[f"share of a step/{p}"]
        for p in ("loading", "computing", "selecting", "sending", "waiting")
    ]
    for moments in zip(*shares, strict=True):
        assert sum(value for _, value in moments) == pytest.approx(1, abs=1e-5)
        assert all(value > 0 for _, value in moments)


def test_the_seconds_of_a_line_include_its_step(tmp_path: Path, workers: WorkerPool) -> None:
    workers.run(2, run, config_for(tmp_path, log_every=1, density=0.1, density_warmup=0))
    measured = 0.0
    for row in rows(tmp_path, "train"):
        measured += sum(row["step_seconds"].values())
        assert measured <= row["seconds"] + 0.0005  # it is written in milliseconds
        assert row["samples_per_second"] > 0


PAUSE = 0.3
"""Seconds that rank 0 waits for rank 1 at least."""


def run_late(rank: int, size: int, config: TrainConfig, waits: Path) -> None:
    """Train; rank 1 comes to each step ``PAUSE`` seconds after rank 0 has begun to wait for it.

    A rank 1 that only slept would not be waited for where the machine has rank 0 stand still as long.
    """
    enter, step, agreements = Clock.enter, Trainer._step, 0

    def entered(clock: Clock, phase: Phase) -> None:
        nonlocal agreements
        enter(clock, phase)
        if phase == "waiting":
            agreements += 1  # as many on each rank
            if rank == 0:
                with waits.open("a") as file:
                    file.write("1")

    def late(trainer: Trainer, batches: Any) -> None:
        if rank == 1:
            while not waits.exists() or waits.stat().st_size <= agreements:
                time.sleep(0.01)
            time.sleep(PAUSE)
        step(trainer, batches)

    with patch.object(Clock, "enter", entered), patch.object(Trainer, "_step", late):
        train(config, CPU, None)


def test_waiting_for_a_slow_worker_shows(tmp_path: Path, workers: WorkerPool) -> None:
    workers.run(2, run_late, config_for(tmp_path / "run", steps=4), tmp_path / "waits")
    log = rows(tmp_path / "run", "train")
    assert [row["step"] for row in log] == [2, 4]
    assert all(row["step_seconds"]["waiting"] >= PAUSE for row in log)


def test_one_dense_worker_has_no_residual_and_sends_nothing(tmp_path: Path) -> None:
    train(config_for(tmp_path, method="dense"), CPU, None)
    found = scalars(tmp_path)
    assert "exchange/residual norm" not in found
    assert [value for _, value in found["share of a step/sending"]] == [0, 0, 0]


def test_dense_training_selects_nothing(tmp_path: Path, workers: WorkerPool) -> None:
    workers.run(2, run, config_for(tmp_path, method="dense"))
    found = scalars(tmp_path)
    assert all(value > 0 for _, value in found["share of a step/averaging"])
    assert "share of a step/selecting" not in found
    names = ["loading", "computing", "averaging", "sending", "waiting"]
    assert [list(row["step_seconds"]) for row in rows(tmp_path, "train")] == [names] * 3


class SlowToLoad:
    """Images whose every training batch takes a while."""

    def __init__(self, images: ImageSet) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def batches(self, *order: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for batch in self._images.batches(*order):
            time.sleep(0.2)
            yield batch


def test_the_time_that_batches_take_is_a_part_of_the_step(tmp_path: Path) -> None:
    config = config_for(tmp_path, steps=5, accumulate=2, log_every=1, batch_size=1000)
    images, test = load(config, spec(config), CPU)  # two steps an epoch
    train(config, CPU, None, (SlowToLoad(images), test))
    log = rows(tmp_path, "train")
    assert all(row["step_seconds"]["loading"] >= 0.4 for row in log)
    measured = sum(sum(row["step_seconds"].values()) for row in log)
    assert measured <= log[-1]["seconds"] + 0.0005


def test_a_measured_step_trains_as_any_other(tmp_path: Path) -> None:
    """Neither the batches nor their order depend on which steps are measured."""
    for name, every in (("all", 1), ("few", 3)):
        train(config_for(tmp_path / name, steps=6, batch_size=1000, log_every=every), CPU, None)
    every_step = [row["loss"] for row in rows(tmp_path / "all", "train")]
    means = [sum(every_step[:3]) / 3, sum(every_step[3:]) / 3]
    assert [row["loss"] for row in rows(tmp_path / "few", "train")] == pytest.approx(means)
    saved = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("all", "few")]
    assert saved[0] == saved[1]


def test_a_run_that_starts_over_leaves_no_old_events(tmp_path: Path) -> None:
    train(config_for(tmp_path, steps=6), CPU, None)
    train(config_for(tmp_path, steps=2, overwrite=True), CPU, None)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    assert [step for step, _ in scalars(tmp_path)["loss/training"]] == [2]


def test_a_resumed_run_goes_on_where_its_events_end(tmp_path: Path) -> None:
    folder = {"checkpoint_dir": tmp_path / "checkpoints", "checkpoint_every": "2 steps"}
    train(config_for(tmp_path / "run", steps=4, **folder), CPU, None)
    (tmp_path / "run" / "summary.json").unlink()
    train(config_for(tmp_path / "run", steps=8, **folder), CPU, None)
    steps = [step for step, _ in scalars(tmp_path / "run")["loss/training"]]
    # The files' names end with the second, the process and a count of its files: of two files of one
    # second and process, as no restarted job has them, the 10th is read before the 9th.
    assert sorted(steps) == [2, 4, 6, 8]


def test_without_it_nothing_is_written(tmp_path: Path) -> None:
    train(config_for(tmp_path, tensorboard=False), CPU, None)
    assert not (tmp_path / "tensorboard").exists()


FULL = """
import resource, sys
from pathlib import Path
from ggs.train.records import EvaluationRow
from ggs.train.tensorboard import Events
events = Events(Path(sys.argv[1]), 0)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
for step in range(20000):
    events.evaluation(EvaluationRow(step=step, seconds=1.0, top1=1.0, loss=1.0))
events.close()
print("trained to the end")
"""


def test_a_full_storage_ends_the_events_but_not_the_training(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "trained to the end\n"
    assert "no more TensorBoard events: File too large" in done.stderr

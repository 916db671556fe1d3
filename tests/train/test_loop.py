"""Whole trainings, small ones, with real workers: results, determinism, every kind of setting."""

import io
import json
import logging
import math
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import yaml
from safetensors.torch import load_file

from ggs.errors import NonFiniteError
from ggs.exchange import forecast
from ggs.train import models
from ggs.train.arguments import build, load_yaml
from ggs.train.config import TrainConfig
from ggs.train.console import Reporter, log_shown
from ggs.train.data import load, spec
from ggs.train.worker import train
from tests.worker_pool import WorkerPool

CPU = torch.device("cpu")


def config_for(folder: Path, **settings: Any) -> TrainConfig:
    return build(
        TrainConfig,
        {
            "run_dir": folder,
            "steps": 6,
            "evaluate_every": 0,
            "log_every": 1,
            "device": "cpu",
            **settings,
        },
    )


def run(rank: int, size: int, config: TrainConfig) -> dict[str, Any]:
    """Train in a worker of the pool; the summary."""
    return train(config, CPU, None)


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_one_worker_leaves_a_whole_run_folder(tmp_path: Path) -> None:
    config = config_for(tmp_path, evaluate_every="2 steps")
    summary = train(config, CPU, None)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.yaml",
        "metrics.jsonl",
        "model.safetensors",
        "summary.json",
        "tensorboard",
    ]
    modes = {path.stat().st_mode for path in tmp_path.iterdir() if path.is_file()}
    assert len(modes) == 1  # whoever may read the record may read the weights
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert build(TrainConfig, load_yaml(tmp_path / "config.yaml")) == config
    assert [row["step"] for row in rows(tmp_path, "train")] == [1, 2, 3, 4, 5, 6]
    assert [row["step"] for row in rows(tmp_path, "evaluation")] == [2, 4, 6]
    assert summary["world_size"] == 1
    assert summary["steps"] == 6
    assert summary["bytes_sent_per_step"] == 0
    assert summary["compression_ratio"] is None
    assert summary["parameters"] == 61_706


def test_the_saved_model_scores_what_the_summary_says(tmp_path: Path) -> None:
    config = config_for(tmp_path, steps=30, density_warmup="5 steps", lr=0.002)
    summary = train(config, CPU, None)
    model = models.build("lenet5", 10, 1, 28, {})
    model.load_state_dict(weights(tmp_path))
    _, test = load(config, spec(config), CPU)
    correct = 0
    with torch.no_grad():
        for images, labels in test.batches(torch.arange(1000), 100, None):
            correct += int((model(images).argmax(1) == labels).sum())
    assert summary["top1"] == correct / 10
    assert summary["top1"] > 30


def test_two_workers_count_every_byte_and_element(tmp_path: Path, workers: WorkerPool) -> None:
    config = config_for(tmp_path, steps=12, density_warmup="4 steps", density=0.01)
    summary, other = workers.run(2, run, config)
    assert summary["world_size"] == 2
    assert summary["global_batch_size"] == 2 * summary["batch_size"]
    assert summary["top1"] == other["top1"]
    assert summary["density"] == 617 / 61_706
    assert summary["dense_bytes_per_step"] == 61_706 * 4
    log = rows(tmp_path, "train")
    assert [row["density"] for row in log[4:]] == [617 / 61_706] * 8
    assert log[0]["density"] == 1.0
    settled = [row["bytes_sent"] for row in log[4:]]
    assert summary["bytes_sent_per_step"] == pytest.approx(sum(settled) / 8, abs=0.1)
    assert summary["bytes_sent_total"] == sum(row["bytes_sent"] for row in log)
    ratio = summary["dense_bytes_per_step"] / (sum(settled) / 8)
    assert summary["compression_ratio"] == pytest.approx(ratio)


def test_every_test_image_counts_once(tmp_path: Path, workers: WorkerPool) -> None:
    """The same model scores the same on one worker and on three, though 1,000 is no multiple of 3."""
    alone = train(config_for(tmp_path / "1", steps=1, lr=1e-12), CPU, None)
    together = workers.run(3, run, config_for(tmp_path / "3", steps=1, lr=1e-12))[0]
    assert together["top1"] == alone["top1"]
    assert together["loss"] == pytest.approx(alone["loss"], rel=1e-6)


@pytest.mark.parametrize("method", ["ggs", "dense"])
def test_the_same_seed_gives_the_same_bits(
    tmp_path: Path, workers: WorkerPool, method: str
) -> None:
    settings = {"method": method, "augment": True, "density_warmup": "2 steps"}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        workers.run(2, run, config_for(tmp_path / name, seed=seed, **settings))
    losses = {n: [row["loss"] for row in rows(tmp_path / n, "train")] for n in "abc"}
    assert losses["a"] == losses["b"]
    assert losses["a"] != losses["c"]
    first, second = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_dense_on_two_workers_is_one_worker_with_twice_the_batch(
    tmp_path: Path, workers: WorkerPool, clip_norm: float | None
) -> None:
    """The order interleaves the workers' images, so that both runs see the same ones in each step."""
    settings = {"method": "dense", "optimizer": "sgd", "lr": 0.1, "clip_norm": clip_norm}
    workers.run(2, run, config_for(tmp_path / "2", batch_size=8, **settings))
    train(config_for(tmp_path / "1", batch_size=16, **settings), CPU, None)
    train(config_for(tmp_path / "a", batch_size=4, accumulate=4, **settings), CPU, None)
    expected = weights(tmp_path / "1")
    for name in ("2", "a"):
        found = weights(tmp_path / name)
        for key in expected:
            torch.testing.assert_close(found[key], expected[key], rtol=1e-4, atol=1e-6)


class Steep(torch.nn.Linear):
    """Begins at 0 and has a large gradient, the same for all images."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(784, num_classes, bias=False)
        torch.nn.init.zeros_(self.weight)
        self.weight.register_hook(lambda gradient: torch.full_like(gradient, 1e6))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.flatten(1))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("method", "moved"), [("ggs", 1), ("gs", 1), ("dgc", math.sqrt(2)), ("dense", 1)]
)
def test_each_method_clips_once(
    tmp_path: Path, workers: WorkerPool, method: str, moved: float, precision: str
) -> None:
    """Deep Gradient Compression lets a worker's own gradient be longer than the mean may be."""
    settings = {
        "method": method, "precision": precision, "optimizer": "sgd", "lr": 1.0, "density": 1.0,
        "density_warmup": 0, "clip_norm": 0.5, "steps": 1, "model": "tests.train.test_loop:Steep",
    }  # fmt: skip
    workers.run(2, run, config_for(tmp_path, **settings))
    assert float(weights(tmp_path)["weight"].norm()) == pytest.approx(0.5 * moved, rel=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "bf16"},
        {"precision": "fp16", "clip_norm": 1.0},
        {"optimizer": "sgd", "momentum": 0.9, "clip_norm": 0.1, "accumulate": 2},
        {
            "lr_schedule": "cosine",
            "lr_warmup": "2 steps",
            "optimizer": "adamw",
            "weight_decay": 0.1,
        },
        {"channels_last": True, "scope": "tensor", "values": "bf16"},
        {"values": "int8", "dense_below": 100},
    ],
    ids=lambda settings: next(iter(settings.items())),
)
def test_every_kind_of_setting_trains(
    tmp_path: Path, workers: WorkerPool, settings: dict[str, Any]
) -> None:
    config = config_for(tmp_path, steps=40, density_warmup="10 steps", density=0.05, **settings)
    workers.run(2, run, config)
    losses = [row["loss"] for row in rows(tmp_path, "train")]
    assert all(math.isfinite(loss) for loss in losses)
    assert sum(losses[-5:]) < sum(losses[:5])


def test_the_learning_rate_in_the_record_is_the_schedules(tmp_path: Path) -> None:
    train(config_for(tmp_path, lr=0.004, lr_schedule="linear", steps=4), CPU, None)
    rates = [row["lr"] for row in rows(tmp_path, "train")]
    assert rates == pytest.approx([0.004, 0.003, 0.002, 0.001])


def test_an_epoch_ends_and_the_next_has_another_order(tmp_path: Path) -> None:
    train(config_for(tmp_path, steps=None, epochs=2, batch_size=500, lr=1e-12), CPU, None)
    log = rows(tmp_path, "train")
    assert [row["step"] for row in log] == list(range(1, 17))
    assert [row["epoch"] for row in log][7::8] == [1.0, 2.0]
    first, second = ([row["loss"] for row in log[i : i + 8]] for i in (0, 8))
    assert first != second
    assert sum(first) == pytest.approx(sum(second), rel=1e-5)  # the same images, unchanged weights


BN_MODEL = "tests.train.test_loop:small_batchnorm_model"


def small_batchnorm_model(num_classes: int) -> torch.nn.Module:
    """A batch-norm layer between two linear ones, with dropout."""
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(784, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(16, num_classes),
    )


@pytest.mark.parametrize("mode", ["average", "local", "dense", "recalibrate"])
def test_batchnorm_modes(tmp_path: Path, workers: WorkerPool, mode: str) -> None:
    config = config_for(
        tmp_path, model=BN_MODEL, batchnorm=mode, steps=60, lr=0.01, density=0.1, batch_size=32
    )
    summary, _ = workers.run(2, run, config)
    assert summary["top1"] > 60
    if mode == "dense":
        assert summary["top1_replicas_mean"] is None
    else:
        assert summary["top1_replicas_min"] <= summary["top1_replicas_mean"]
        assert summary["top1_replicas_mean"] > 60
    if mode == "local":
        assert summary["top1"] == summary["top1_replicas_mean"]


def test_a_run_with_gradients_of_nan_stops_in_one_line(tmp_path: Path) -> None:
    config = config_for(
        tmp_path, optimizer="sgd", lr=1e30, steps=40, max_consecutive_skips=3, density=1.0
    )
    with pytest.raises(NonFiniteError, match="3 steps in a row"):
        train(config, CPU, None)
    assert not (tmp_path / "summary.json").exists()
    assert rows(tmp_path, "train")[-1]["skipped_steps"] >= 1


def test_a_restarted_run_starts_over_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_for(tmp_path, steps=2)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    (tmp_path / "metrics.jsonl").write_text("half a li")
    train(config, CPU, None)
    assert f"starting over the run in {tmp_path}" in capsys.readouterr().out
    assert [row["step"] for row in rows(tmp_path, "train")] == [1, 2]


def test_without_run_dir_every_run_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(3):
        train(config_for(tmp_path, run_dir=None, steps=1), CPU, None)
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [
        "lenet5-mnist5k-ggs",
        "lenet5-mnist5k-ggs-2",
        "lenet5-mnist5k-ggs-3",
    ]


def test_a_density_warm_up_that_outlasts_the_run_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is said of the bytes after the warm-up would never be true."""
    train(config_for(tmp_path / "long", density_warmup="9 steps"), CPU, None)
    said = capsys.readouterr().out
    assert said.count("warning") == 1
    assert "density_warmup: 9 steps (9 steps) last to the end of the run (6 steps)" in said
    train(config_for(tmp_path / "short", density_warmup="5 steps"), CPU, None)
    train(config_for(tmp_path / "dense", density_warmup="9 steps", method="dense"), CPU, None)
    assert "warning" not in capsys.readouterr().out


def said(rank: int, size: int, config: TrainConfig, hint: str) -> str:
    """What a worker's training prints where hierarchical is said to be cheaper."""
    output = io.StringIO()
    with (
        mock.patch.object(forecast, "hint", return_value=hint),
        redirect_stdout(output),
        redirect_stderr(output),
    ):
        run(rank, size, config)
    return output.getvalue()


def test_the_log_tells_the_exchange_and_hints_at_a_cheaper_one(
    tmp_path: Path, workers: WorkerPool
) -> None:
    """On rank 0 alone, above the lines about the training."""
    config = config_for(tmp_path, density_warmup="2 steps", workers_per_node=2)
    hint = "hint: exchange=hierarchical would send less"
    first, *others = workers.run(2, said, config, hint)
    assert first.count("exchange: allgather, for ") == 1
    assert first.count(f"\n{hint}\n") == 1
    assert others == [""]


def test_local_steps_are_told_of_first_and_last(tmp_path: Path, workers: WorkerPool) -> None:
    config = config_for(tmp_path, every=3, steps=7)
    first, *others = workers.run(2, said, config, "")
    assert "local steps: each worker moves its own weights, and every 3 steps" in first
    assert "GGS around adam, 3 local steps between exchanges" in first
    assert " in each exchange, every 3 steps (density " in first
    assert others == [""]


def test_the_model_saved_in_the_middle_of_local_steps_is_everyones(
    tmp_path: Path, workers: WorkerPool
) -> None:
    """What is left of the local steps is exchanged before the model is tested and saved."""
    workers.run(2, run, config_for(tmp_path, every=4, steps=6, check_replicas_every="1 steps"))
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert rows(tmp_path, "evaluation")[-1]["bytes_sent_total"] == summary["bytes_sent_total"]
    assert rows(tmp_path, "train")[-1]["bytes_sent_total"] < summary["bytes_sent_total"]


def test_the_log_tells_how_nodes_are_made_up(tmp_path: Path, workers: WorkerPool) -> None:
    config = config_for(tmp_path, steps=2, exchange="hierarchical", workers_per_node=2)
    first, *others = workers.run(4, said, config, "")
    assert first.startswith("exchange: hierarchical, 2 nodes of 2 workers\n")
    assert others == ["", "", ""]


def test_what_is_logged_is_shown_during_a_training_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = logging.getLogger("ggs")
    with log_shown() as log:
        logger.info("exchange: %s", "split")
        log.say = Reporter(1, 1).say
        logger.warning("no more TensorBoard events: %s", "full")
    logger.info("unseen")
    shown = capsys.readouterr()
    assert shown.err == "exchange: split\n"
    assert shown.out == "ggs: warning: no more TensorBoard events: full\n"

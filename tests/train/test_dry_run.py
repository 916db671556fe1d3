"""A dry run's figures are those of the run itself, and it leaves nothing behind."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ggs.errors import ConfigurationError, UnsupportedError
from ggs.launch import exit_codes
from ggs.optim.flat import FlatParameters
from ggs.text import readable_bytes
from ggs.train import traffic
from ggs.train.arguments import build
from ggs.train.config import TrainConfig
from ggs.train.dry_run import describe, dry_run
from ggs.train.worker import train
from tests.worker_pool import WorkerPool

CPU = torch.device("cpu")
BN_MODEL = "tests.train.test_loop:small_batchnorm_model"


def config_for(**settings: Any) -> TrainConfig:
    return build(TrainConfig, {"device": "cpu", "steps": 3, "density_warmup": 0, **settings})


def run(rank: int, size: int, config: TrainConfig) -> list[int]:
    train(config, CPU, None)
    assert config.run_dir is not None
    lines = (config.run_dir / "metrics.jsonl").read_text().splitlines() if rank == 0 else []
    return [row["bytes_sent"] for row in map(json.loads, lines) if row["kind"] == "train"]


@pytest.mark.parametrize(
    ("count", "settings"),
    [
        (2, {}),
        (3, {"density": 0.02, "scope": "tensor", "values": "int8"}),
        (4, {"density": 0.001, "dense_below": 100, "values": "bf16"}),
        (4, {"density": 1.0}),
        (3, {"method": "dense"}),
        (3, {"method": "dense", "clip_norm": 1.0, "optimizer": "sgd"}),
        (2, {"method": "gs"}),
        (4, {"exchange": "hierarchical", "workers_per_node": 2, "density": 0.01}),
        (2, {"model": BN_MODEL, "density": 0.01}),
        (2, {"model": BN_MODEL, "density": 0.01, "batchnorm": "dense"}),
    ],
    ids=str,
)
def test_every_byte_is_foretold(
    tmp_path: Path, workers: WorkerPool, count: int, settings: dict[str, Any]
) -> None:
    found = dry_run(config_for(workers=count, **settings))
    config = config_for(
        run_dir=tmp_path, log_every=1, evaluate_every=0, tensorboard=False, **settings
    )
    sent = workers.run(count, run, config)[0]
    assert sent == [found.traffic.bytes_sent] * 3
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert found.traffic.dense_bytes == summary["dense_bytes_per_step"]
    assert f"{sent[0]:,} B per worker and step" in describe(found)


def test_bytes_by_index_range_are_foretold_closely(tmp_path: Path, workers: WorkerPool) -> None:
    settings = {"exchange": "split", "density": 0.01}
    found = dry_run(config_for(workers=4, **settings))
    config = config_for(
        run_dir=tmp_path, log_every=1, evaluate_every=0, tensorboard=False, **settings
    )
    sent = workers.run(4, run, config)[0]
    assert sent == pytest.approx([found.traffic.bytes_sent] * 3, rel=0.03)
    assert f"about {found.traffic.bytes_sent:,} B per worker" in describe(found)


@pytest.mark.parametrize(
    ("count", "settings"),
    [
        (2, {"density_warmup": "6 steps", "exchange": "allgather"}),
        (2, {"density_warmup": "6 steps", "steps": 4}),
        (2, {"density_warmup": "6 steps", "scope": "tensor", "values": "int8", "dense_below": 100}),
        (3, {"density_warmup": "6 steps", "method": "dgc", "optimizer": "sgd", "lr": 1e-4}),
        (2, {"method": "dense", "density_warmup": "6 steps"}),
        (2, {"density_warmup": "6 steps", "every": 3}),
        (2, {"density_warmup": "6 steps", "every": 4, "steps": 7, "dense_below": 100}),
        (2, {"density_warmup": "20 steps", "every": 4}),
        (2, {"every": 100}),
        (2, {"budget": "2 kB", "density_warmup": "6 steps"}),
        (3, {"budget": "0.4 %", "every": 2, "method": "ggs"}),
        (2, {"budget": "0.1 bits", "method": "gs"}),
        (2, {"momentum_follows_density": True}),
        (2, {}),
    ],
    ids=str,
)
def test_every_byte_of_a_whole_run_is_foretold(
    tmp_path: Path, workers: WorkerPool, count: int, settings: dict[str, Any]
) -> None:
    settings = {"steps": 10, **({} if "budget" in settings else {"density": 0.003}), **settings}
    found = dry_run(config_for(workers=count, **settings))
    assert found.whole_run.exact
    if settings.get("budget") == "2 kB":
        assert 1900 < found.traffic.bytes_sent <= 2000
        assert found.values == "sign"
    config = config_for(run_dir=tmp_path, evaluate_every=0, tensorboard=False, **settings)
    workers.run(count, run, config)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert found.whole_run.bytes_sent == summary["bytes_sent_total"]
    ratio = found.whole_run.dense_bytes / found.whole_run.bytes_sent
    assert ratio == pytest.approx(summary["compression_ratio_total"])
    (line,) = [line for line in describe(found).splitlines() if line.startswith("  whole run ")]
    warmed_up = settings.get("method") != "dense" and "density_warmup" in settings
    assert line == (
        f"  whole run {readable_bytes(summary['bytes_sent_total'])} per worker"
        f"{', warm-up included' if warmed_up else ''}; dense training "
        f"{readable_bytes(found.whole_run.dense_bytes)}, {ratio:,.1f} times as much"
    )


def test_a_whole_run_by_index_range_is_foretold_closely(
    tmp_path: Path, workers: WorkerPool
) -> None:
    settings = {"exchange": "split", "density": 0.01, "density_warmup": "6 steps", "steps": 10}
    found = dry_run(config_for(workers=4, **settings))
    config = config_for(run_dir=tmp_path, evaluate_every=0, tensorboard=False, **settings)
    workers.run(4, run, config)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert found.whole_run.bytes_sent == pytest.approx(summary["bytes_sent_total"], rel=0.03)
    assert f"  whole run about {readable_bytes(found.whole_run.bytes_sent)} per worker" in describe(
        found
    )


def test_a_long_warm_up_is_foretold_from_a_part_of_its_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"workers": 2, "steps": 3000, "density_warmup": "2000 steps"}
    coarse = dry_run(config_for(**settings)).whole_run
    monkeypatch.setattr(traffic, "WARMUP_PARTS", 2000)
    fine = dry_run(config_for(**settings)).whole_run
    assert fine.exact
    assert not coarse.exact
    assert coarse.bytes_sent == pytest.approx(fine.bytes_sent, rel=1e-4)


@pytest.mark.parametrize("settings", [{"method": "dense"}, {"density": 0.01}], ids=str)
def test_without_a_warm_up_none_is_spoken_of(settings: dict[str, Any]) -> None:
    """Nor is dense training, which sends a few bytes more to agree, told to lower its density."""
    text = describe(dry_run(config_for(workers=2, **settings)))
    assert "warm-up" not in text
    assert "lower the density" not in text
    dense = {"density_warmup": "1 epoch", "method": "dense"}
    assert "warm-up" not in describe(dry_run(config_for(workers=2, **dense)))
    assert "lower the density" in describe(dry_run(config_for(workers=2, density=1.0)))


def test_it_copies_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent follows from the run's own index space; a second one would be as large as the model."""
    built = []
    make = FlatParameters.__init__

    def counted(self: FlatParameters, *rest: Any) -> None:
        built.append(self)
        make(self, *rest)

    monkeypatch.setattr(FlatParameters, "__init__", counted)
    dry_run(config_for(workers=2))
    assert len(built) == 1


def test_many_workers_send_no_more_than_a_few() -> None:
    """Beyond some number of workers the exchange is by index range."""
    settings = {"model": "resnet18", "image_size": 32, "density": 0.01, "batch_size": 2}
    few = dry_run(config_for(workers=16, **settings)).traffic
    many = dry_run(config_for(workers=64, **settings)).traffic
    assert (few.exchange, many.exchange) == ("split", "split")
    assert many.bytes_sent < 1.1 * few.bytes_sent


def test_each_tensor_has_its_kind_and_share() -> None:
    found = dry_run(config_for(model=BN_MODEL, scope="tensor", density=0.01, dense_below=100))
    kinds = {p.name: (p.kind, p.numel, p.sent) for p in found.parameters}
    assert kinds == {
        "1.weight": ("sparse", 12544, 125),
        "1.bias": ("dense", 16, 16),
        "2.weight": ("local", 16, 0),
        "2.bias": ("local", 16, 0),
        "5.weight": ("sparse", 160, 2),
        "5.bias": ("dense", 10, 10),
    }
    text = describe(found)
    assert "12,704 elements in 2 tensors, of which 127 are sent" in text
    assert "26 elements in 2 tensors, sent whole every step" in text
    assert "32 elements in 2 tensors, never sent: batch norm, average" in text
    assert "One worker sends nothing" in text


def test_the_memory_is_that_of_what_is_kept() -> None:
    weights = 4 * 61_706
    memory = dry_run(config_for(batch_size=8)).memory
    assert memory["weights"] == memory["gradients"] == memory["residual"] == weights
    assert memory["optimizer"] == 2 * weights + 10 * 4  # Adam's moments, a step count per tensor
    twice = dry_run(config_for(batch_size=16)).memory
    assert twice["activations"] == pytest.approx(2 * memory["activations"], rel=0.05)
    sgd = dry_run(config_for(optimizer="sgd", method="dense")).memory
    assert sgd["optimizer"] == sgd["residual"] == 0


def test_what_would_fail_later_fails_now() -> None:
    with pytest.raises(ConfigurationError, match="2 workers per node do not divide the 3 workers"):
        dry_run(config_for(workers=3, exchange="hierarchical", workers_per_node=2))
    with pytest.raises(ConfigurationError, match=r"images per step, but mnist5k has 4,000"):
        dry_run(config_for(workers=8, batch_size=1000))
    with pytest.raises(UnsupportedError, match="LBFGS"):
        dry_run(config_for(optimizer="lbfgs"))


def test_a_warm_up_that_outlasts_the_run_is_told_of() -> None:
    found = describe(
        dry_run(config_for(workers=2, epochs=1, steps=None, density_warmup="2 epochs"))
    )
    assert found.splitlines()[-1].startswith("ggs: warning: density_warmup: 2 epochs (250 steps)")
    assert "warning" not in describe(dry_run(config_for(workers=2, density_warmup="2 steps")))


def test_the_command_leaves_nothing_behind(tmp_path: Path) -> None:
    flags = ["--dry-run", "--workers", "2", "--device", "cpu", "--run-dir", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "ggs.cli.main", "train", *flags],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == exit_codes.SUCCESS, done.stderr
    assert "61,706 parameters in 10 tensors" in done.stdout
    assert "nothing was trained or written" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_worker_of_a_launcher_tries_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun it is one of several that never meet."""
    alone = dry_run(config_for(workers=2)).traffic
    for name, value in {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    found = dry_run(config_for())
    assert found.workers == 2
    assert found.traffic == alone


def test_local_steps_are_told_by_exchange_and_by_step(tmp_path: Path, workers: WorkerPool) -> None:
    settings = {"every": 4, "steps": 8, "density": 0.004, "values": "sign"}
    found = dry_run(config_for(workers=2, **settings))
    config = config_for(
        run_dir=tmp_path, log_every=1, evaluate_every=0, tensorboard=False, **settings
    )
    sent = workers.run(2, run, config)[0]
    assert sent == [0, 0, 0, *[found.traffic.bytes_sent // 4] * 5]  # from the first exchange on
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["bytes_sent_per_exchange"] == found.traffic.bytes_sent
    assert summary["bytes_sent_per_step"] == found.traffic.bytes_sent / 4
    assert summary["bytes_sent_total"] == found.traffic.bytes_sent * 2
    assert summary["density"] == pytest.approx(0.004, rel=0.01)
    assert summary["every"] == 4
    text = describe(found)
    assert f"{found.traffic.bytes_sent:,} B per worker and exchange, every 4 steps: " in text
    assert f"{found.traffic.bytes_sent / 4:,.0f} B per step; dense training 246.8 kB, " in text
    assert found.memory["local steps"] == 2 * found.memory["residual"]
    assert "local steps 493.6 kB" in text

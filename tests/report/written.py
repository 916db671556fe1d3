"""Runs' folders as ``ggs train`` leaves them, written by hand: no training, and any damage."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

Row = dict[str, Any]


def config(**changed: Any) -> Row:
    return {
        "model": "lenet5", "data": "mnist5k", "optimizer": "adam", "lr": 0.001, "seed": 0,
        "method": "ggs", "density": 0.01, "density_warmup": "1 epoch", "every": 1, "scope": "global",
        "values": "fp32", "batchnorm": "average", "exchange": "auto", "workers_per_node": None,
        "dense_below": 0, "max_consecutive_skips": 100, **changed,
    }  # fmt: skip


def training(step: int, **changed: Any) -> Row:
    return {
        "kind": "train", "step": step, "epoch": step / 100, "seconds": step / 10, "loss": 2 / step,
        "lr": 0.001, "density": 0.01, "bytes_sent": 400, "bytes_sent_total": 400 * step,
        "samples_per_second": 320.0, "skipped_steps": 0, "residual_norm": 0.5,
        "step_seconds": {"computing": 0.01, "selecting": 0.002, "sending": 0.004, "waiting": 0.001},
        **changed,
    }  # fmt: skip


def evaluation(step: int, **changed: Any) -> Row:
    return {
        "kind": "evaluation", "step": step, "epoch": step / 100, "seconds": step / 10,
        "bytes_sent_total": 400 * step, "top1": 90 + step / 100, "loss": 0.3, **changed,
    }  # fmt: skip


def summary(steps: int, **changed: Any) -> Row:
    return {
        "method": "ggs", "top1": 90 + steps / 100, "loss": 0.3, "world_size": 2, "density": 0.01,
        "steps": steps, "seconds": steps / 10, "samples_per_second": 320.0, "bytes_sent_per_step": 400.0,
        "compression_ratio": 617.0, "bytes_sent_total": 400 * steps, "compression_ratio_total": 600.0,
        "device": "cpu", "ggs_version": "0.1.0", "torch_version": "2.6", "python_version": "3.11",
        **changed,
    }  # fmt: skip


def write(
    path: Path,
    steps: int = 60,
    *,
    settings: Row | None = None,
    rows: Sequence[Row | str] | None = None,
    end: Row | str | None = None,
    finished: bool = True,
) -> Path:
    """Write a run to ``path``; texts are written as they are. Returns ``path``."""
    every = range(10, steps + 1, 10)
    if rows is None:
        rows = [*(training(step) for step in every), evaluation(steps // 2), evaluation(steps)]
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config() if settings is None else settings))
    (path / "metrics.jsonl").write_text("".join(f"{_text(row)}\n" for row in rows))
    if finished:
        (path / "summary.json").write_text(_text(summary(steps) if end is None else end))
    return path


def _text(row: Row | str) -> str:
    return row if isinstance(row, str) else json.dumps(row)

"""The ``ggs`` command as a person types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ggs.pai import exit_codes


def ggs(*argv: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ggs.cli", *argv]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=110, check=False
    )


def test_help_lists_the_commands(tmp_path: Path) -> None:
    done = ggs("--help", folder=tmp_path)
    assert done.returncode == 0
    assert "train" in done.stdout


def test_train_help_lists_the_settings(tmp_path: Path) -> None:
    done = ggs("train", "--help", folder=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: ggs train")
    assert "--density " in done.stdout


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--density", "2"],
        ["train", "--model", "lenet6"],
    ],
)
def test_a_mistake_is_one_line_and_never_retried(tmp_path: Path, argv: list[str]) -> None:
    done = ggs(*argv, folder=tmp_path)
    assert done.returncode == exit_codes.NEVER_RETRY
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command_is_told(tmp_path: Path) -> None:
    done = ggs("trian", folder=tmp_path)
    assert done.returncode == 2
    assert "trian" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(120)
def test_two_workers_train_from_one_command(tmp_path: Path) -> None:
    argv = ["--workers", "2", "--steps", "20", "--device", "cpu", "--density-warmup", "5 steps"]
    done = ggs("train", *argv, "--run-dir", "runs/first", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs/first/summary.json").read_text())
    assert summary["world_size"] == 2
    assert summary["steps"] == 20
    assert f"{summary['top1']:.2f} % of 1,000 test images" in done.stdout
    assert "results   runs/first" in done.stdout
    again = ggs("train", "--config", "runs/first/config.yaml", folder=tmp_path)
    assert again.returncode == exit_codes.NEVER_RETRY
    assert "holds a finished run" in again.stderr

"""The ``ggs`` command as a person types it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ggs import __version__
from ggs.launch import exit_codes


def ggs(*argv: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ggs.cli.main", *argv]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=580, check=False
    )


def test_help_lists_the_commands(tmp_path: Path) -> None:
    done = ggs("--help", folder=tmp_path)
    assert done.returncode == 0
    assert "train" in done.stdout


def test_the_version(tmp_path: Path) -> None:
    assert ggs("--version", folder=tmp_path).stdout == f"ggs {__version__}\n"


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
def test_a_mistake_is_one_line(tmp_path: Path, argv: list[str]) -> None:
    done = ggs(*argv, folder=tmp_path)
    assert done.returncode == exit_codes.USAGE
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command_is_told(tmp_path: Path) -> None:
    done = ggs("trian", folder=tmp_path)
    assert done.returncode == 2
    assert "trian" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_quickstart_leaves_its_results(root: Path, tmp_path: Path) -> None:
    """A few of its steps: the folder, the summary, and that a second run harms neither."""
    example = str(root / "examples/quickstart.yaml")
    done = ggs("train", "--config", example, "--device", "cpu", "--steps", "3", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = "runs/lenet5-mnist5k-ggs"  # none is set, so that a second run needs no other
    summary = json.loads((tmp_path / folder / "summary.json").read_text())
    assert summary["world_size"] == 2
    assert f"{summary['top1']:.2f} % of 1,000 test images" in done.stdout
    assert f"results   {folder}" in done.stdout
    again = ggs("train", "--config", example, "--run-dir", folder, folder=tmp_path)
    assert again.returncode == exit_codes.USAGE
    assert "holds a finished run" in again.stderr


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_quickstart_keeps_its_promise(root: Path, tmp_path: Path) -> None:
    """94 % of held-out images right, with a thousandth of the elements sent, by one command."""
    example = str(root / "examples/quickstart.yaml")
    done = ggs("train", "--config", example, "--device", "cpu", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs/lenet5-mnist5k-ggs"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["top1"] >= 94
    assert summary["density"] <= 0.0015
    assert summary["compression_ratio"] > 400

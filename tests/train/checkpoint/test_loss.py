"""Nothing that was trained may be lost: who deletes what when, in trainings by one worker."""

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from ggs.errors import CheckpointError, ConfigurationError
from ggs.train.arguments import build
from ggs.train.check import check
from ggs.train.checkpoint import files
from ggs.train.config import TrainConfig
from ggs.train.loop import Trainer
from ggs.train.worker import train
from tests.train.checkpoint.waiting import wait_for_checkpoint

pytestmark = pytest.mark.timeout(600)  # several trainings each
CPU = torch.device("cpu")


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of the training runs after it."""


def config_for(folder: Path, **settings: Any) -> TrainConfig:
    values = {
        "run_dir": folder / "run", "checkpoint_dir": folder / "checkpoints", "checkpoint_every": "1 step",
        "keep_checkpoints": 1000, "batch_size": 8, "evaluate_every": 0, "eval_batch_size": 1000,
        "device": "cpu", "threads": 1, **settings,
    }  # fmt: skip
    return build(TrainConfig, values)


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in files.checkpoints(folder / "checkpoints"))


def train_until(monkeypatch: pytest.MonkeyPatch, step: int, config: TrainConfig) -> None:
    """Train, and be killed in the step after ``step``, when its checkpoint is whole."""
    original = Trainer._step

    def killed_later(trainer: Trainer, batches: Any) -> None:
        if trainer.state.step == step:
            wait_for_checkpoint(trainer)
            raise Killed
        original(trainer, batches)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", killed_later)
        with pytest.raises(Killed):
            train(config, CPU, None)


def test_starting_over_keeps_the_old_until_there_is_something_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config_for(tmp_path, steps=4), CPU, None)
    over = config_for(tmp_path, steps=4, lr=0.01, overwrite=True)
    train_until(monkeypatch, 0, over)
    assert steps(tmp_path) == [1, 2, 3, 4]
    train_until(monkeypatch, 2, over)
    assert steps(tmp_path) == [1, 2]  # of the new run alone: its settings are another run's
    settings = files.read_manifest(files.step_folder(tmp_path / "checkpoints", 1)).settings
    assert settings["lr"] == 0.01


def test_the_end_of_an_old_run_is_not_the_end_of_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that starts over and is killed where its predecessor had ended goes on when it is retried."""
    train(config_for(tmp_path, steps=2), CPU, None)
    over = config_for(tmp_path, steps=4, overwrite=True)
    train_until(monkeypatch, 2, over)
    (files.step_folder(tmp_path / "checkpoints", 1) / "mark").touch()
    train(over, CPU, None)
    assert (files.step_folder(tmp_path / "checkpoints", 1) / "mark").exists()


def test_the_checkpoint_that_a_run_starts_from_outlives_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config_for(tmp_path, steps=4), CPU, None)
    start = files.step_folder(tmp_path / "checkpoints", 2)
    again = config_for(tmp_path, steps=4, overwrite=True, resume=str(start))
    train_until(monkeypatch, 2, again)
    assert start in files.checkpoints(tmp_path / "checkpoints")
    train_until(monkeypatch, 3, again)
    assert steps(tmp_path) == [1, 2, 3]


def test_a_folder_that_another_model_leaves_is_not_emptied_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(config_for(tmp_path / "own", steps=2), CPU, None)
    train(config_for(tmp_path / "other", steps=2, batch_size=4), CPU, None)
    other = str(tmp_path / "other" / "checkpoints")
    with pytest.raises(ConfigurationError, match="batch_size is 4 there and 8 here"):
        train(config_for(tmp_path / "own", steps=2, overwrite=True, resume=other), CPU, None)
    assert steps(tmp_path / "own") == [1, 2]


def test_a_finished_runs_results_are_not_lost_to_a_resumed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--run-dir of one run, --checkpoint-dir of another: a slip that must not cost the results."""
    finished = config_for(tmp_path / "one", steps=2, seed=7)
    train(finished, CPU, None)
    results = (tmp_path / "one" / "run" / "summary.json").read_bytes()
    other = config_for(tmp_path / "two", steps=3)
    train_until(monkeypatch, 2, other)
    slip = config_for(tmp_path / "two", steps=3, run_dir=tmp_path / "one" / "run")
    for attempt in (lambda: check(slip), lambda: train(slip, CPU, None)):
        with pytest.raises(ConfigurationError, match=r"run_dir: .*seed 7, here it is 0"):
            attempt()
    assert (tmp_path / "one" / "run" / "summary.json").read_bytes() == results
    meant = slip.model_copy(update={"overwrite": True})
    check(meant)
    assert train(meant, CPU, None)["steps"] == 3


def test_of_two_jobs_in_one_folder_the_first_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when a node that was given up for lost comes back while the retried job runs elsewhere."""
    config = config_for(tmp_path, steps=9, keep_checkpoints=2)
    original, inside = Trainer._step, []

    def step(trainer: Trainer, batches: Any) -> None:
        original(trainer, batches)
        if trainer.state.step == 3 and not inside:
            inside.append(True)
            # Else the second job would clear away what a slow disk has of step 2, which is a failure
            # to write: of that one this job would say that training goes on.
            wait_for_checkpoint(trainer)
            train(
                config_for(tmp_path, steps=8, run_dir=tmp_path / "second", keep_checkpoints=2),
                CPU,
                None,
            )

    monkeypatch.setattr(Trainer, "_step", step)
    with pytest.raises(
        ConfigurationError, match=r"checkpoint_dir: another job, on .* has taken over"
    ) as error:
        train(config, CPU, None)
    assert "\n" not in str(error.value)
    assert "; this job stops, so that" in str(error.value)
    assert "training goes on" not in capsys.readouterr().out  # it does not
    assert steps(tmp_path) == [7, 8]


def test_the_clock_may_go_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest checkpoint is the one of the last step, whatever the files' times say."""
    times = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr("time.time", lambda: float(next(times)))
    train_until(monkeypatch, 4, config_for(tmp_path, steps=6, keep_checkpoints=2))
    assert steps(tmp_path) == [3, 4]
    os.utime(files.step_folder(tmp_path / "checkpoints", 4) / files.MANIFEST, (0, 0))
    (files.step_folder(tmp_path / "checkpoints", 4) / "mark").touch()
    train(config_for(tmp_path, steps=6), CPU, None)
    assert (files.step_folder(tmp_path / "checkpoints", 4) / "mark").exists()


def test_half_deleted_checkpoints_do_not_fill_the_storage(tmp_path: Path) -> None:
    """What a kill in the middle of a deletion leaves has no manifest any more."""
    left = files.step_folder(tmp_path / "checkpoints", 1)
    left.mkdir(parents=True)
    (left / files.rank_file(0)).write_bytes(bytes(1000))
    train(config_for(tmp_path, steps=3, checkpoint_every="3 steps"), CPU, None)
    assert not left.exists()


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a storage with a fault would make a job start at step 0."""
    config = config_for(tmp_path, steps=2, checkpoint_every="2 steps")
    train_until(monkeypatch, 0, config)
    folder = files.step_folder(tmp_path / "checkpoints", 2)
    folder.mkdir()
    (folder / files.MANIFEST).symlink_to(files.MANIFEST)  # ELOOP: an error that is not "absent"
    with pytest.raises(CheckpointError, match=r"none of the 1 checkpoints .*symbolic link"):
        train(config, CPU, None)


def test_whatever_keeps_a_worker_from_writing_is_told_as_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not only what a storage says: the other workers wait for what this one has to say."""
    monkeypatch.setattr(files, "write_state", mock.Mock(side_effect=ValueError("odd")))
    with pytest.raises(CheckpointError, match=r"its last step, 2, .*: rank 0 cannot .*: odd$"):
        train(config_for(tmp_path, steps=2), CPU, None)
    said = capsys.readouterr().out
    assert said.count("ggs: warning: rank 0 cannot write to ") == 1
    assert said.count(".partial: odd; training goes on\n") == 1

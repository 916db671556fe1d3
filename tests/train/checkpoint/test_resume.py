"""A resumed training ends as if nothing had happened: real trainings on one to four workers."""

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch
import torch.distributed as dist
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from ggs.errors import CheckpointError, ConfigurationError
from ggs.train.arguments import build
from ggs.train.check import check
from ggs.train.checkpoint import files, state
from ggs.train.checkpoint.load import load
from ggs.train.config import TrainConfig
from ggs.train.worker import train
from tests.worker_pool import WorkerPool

pytestmark = pytest.mark.timeout(600)  # several trainings each
CPU = torch.device("cpu")
TIMES = ("seconds", "samples_per_second", "step_seconds")


def config_for(folder: Path, **settings: Any) -> TrainConfig:
    values = {
        "run_dir": folder / "run",
        "checkpoint_dir": folder / "checkpoints",
        "checkpoint_every": "1 step",
        "keep_checkpoints": 1000,
        "batch_size": 8,
        "evaluate_every": 0,
        "eval_batch_size": 1000,
        "log_every": 2,
        "device": "cpu",
        "threads": 1,
        **settings,
    }
    return build(TrainConfig, {name: value for name, value in values.items() if value is not None})


def run(rank: int, size: int, config: TrainConfig) -> dict[str, Any]:
    """One worker's training; the main group is one of its own, as in a real run."""
    summary = train(config, CPU, None)
    if size > 1:
        dist.barrier()
    return summary


def stderr_of(rank: int, size: int, config: TrainConfig) -> str:
    """What a worker's training says on stderr."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        run(rank, size, config)
    return said.getvalue()


def weights(folder: Path) -> bytes:
    return (folder / "run" / "model.safetensors").read_bytes()


def record(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{name: v for name, v in row.items() if name not in TIMES} for row in rows]


def only(source: Path, step: int, target: Path) -> None:
    """A folder as a job that was killed after ``step`` leaves it to its successor."""
    folder = files.step_folder(source / "checkpoints", step)
    shutil.copytree(folder, target / "checkpoints" / folder.name)


def dropout_net(num_classes: int, **options: Any) -> nn.Module:
    """Small, with all that has a state: dropout, batch-norm, and a frozen parameter."""
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.LazyLinear(num_classes),
    )
    net(torch.zeros(1, 3, 16, 16))
    net[0].bias.requires_grad_(False)
    return net


class LoudNet(nn.Module):
    """Its gradients overflow float16 until the loss scale has come down a few times."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(768, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(30 * self.norm(images).flatten(1))
        return scores


def loud_net(num_classes: int, **options: Any) -> nn.Module:
    """See ``LoudNet``."""
    return LoudNet(num_classes)


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    numbers = torch.Generator().manual_seed(1)
    for part, count in (("train", 20), ("test", 3)):
        for name in ("a", "b"):
            (folder / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = torch.randint(0, 255, (16, 16, 3), generator=numbers, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(folder / part / name / f"{i}.png")
    return folder


IMAGES = {
    "model": "tests.train.checkpoint.test_resume:dropout_net",
    "data": "imagefolder",
    "image_size": 16,
    "batch_size": 4,
    "augment": True,
}
SCENARIOS: dict[str, dict[str, Any]] = {
    # 40 images, 2 workers: 5 steps an epoch, so that epochs begin and end on the way.
    "workers that decode, dropout, batch-norm": {
        **IMAGES, "data_workers": 1, "batch_size": 8, "epochs": 2, "density": 0.05,
        "density_warmup": "7 steps", "optimizer": "adamw", "lr_schedule": "cosine", "lr_warmup": "3 steps",
    },
    "accumulation, clipping, momentum": {
        **IMAGES, "batch_size": 2, "accumulate": 2, "clip_norm": 0.5, "optimizer": "sgd", "lr": 0.05,
        "momentum": 0.9, "epochs": 2, "density": 0.02, "scope": "tensor", "batchnorm": "recalibrate",
    },
    "dense, amsgrad": {
        **IMAGES, "method": "dense", "optimizer": "amsgrad", "epochs": 2, "batchnorm": "local",
    },
    "int8, channels last, bf16": {
        **IMAGES, "channels_last": True, "precision": "bf16", "values": "int8", "epochs": 2,
        "density": 0.1, "evaluate_every": "3 steps",
    },
    "fp16, whose first steps overflow": {
        **IMAGES, "model": "tests.train.checkpoint.test_resume:loud_net", "precision": "fp16", "epochs": 2,
        "density": 0.1, "log_every": 1,
    },
    "lenet, the small ones whole": {
        "steps": 8, "dense_below": 200, "density": 0.01, "density_warmup": "4 steps",
        "optimizer": "rmsprop",
    },
    # Exchanges after steps 4 and 8, and of what is there after the end.
    "local steps, batch-norm, decay": {
        **IMAGES, "every": 4, "epochs": 2, "density": 0.05, "density_warmup": "6 steps", "optimizer": "adamw",
        "lr_schedule": "cosine", "values": "int8", "evaluate_every": "3 steps", "log_every": 1,
        "check_replicas_every": "1 steps",
    },
    "local steps, fp16, whose first steps overflow": {
        **IMAGES, "model": "tests.train.checkpoint.test_resume:loud_net", "precision": "fp16", "epochs": 2,
        "density": 0.1, "log_every": 1, "every": 3,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(
    workers: WorkerPool, tmp_path: Path, image_folder: Path, name: str
) -> None:
    settings = {"data_dir": image_folder, **SCENARIOS[name]}
    # The pool's processes may not have children, so that what decodes images serves one worker here.
    alone = "data_workers" in settings
    plain = config_for(tmp_path / "plain", checkpoint_dir=None, checkpoint_every=None, **settings)
    whole = config_for(tmp_path / "whole", **settings)

    def trained(config: TrainConfig) -> dict[str, Any]:
        return run(0, 1, config) if alone else workers.run(2, run, config)[0]

    trained(plain)
    trained(whole)
    assert weights(tmp_path / "whole") == weights(tmp_path / "plain")
    assert record(tmp_path / "whole") == record(tmp_path / "plain")
    steps = len(files.checkpoints(tmp_path / "whole" / "checkpoints"))
    for step in (1, steps // 2, steps // 2 + 1, steps - 1):
        resumed = tmp_path / f"from-{step}"
        only(tmp_path / "whole", step, resumed)
        summary = trained(config_for(resumed, **settings))
        assert weights(resumed) == weights(tmp_path / "plain"), step
        assert record(resumed) == record(tmp_path / "plain"), step
        assert summary["steps"] == steps
        later = [path.name for path in files.checkpoints(resumed / "checkpoints")]
        assert len(later) == steps - step + 1  # it began there, and not at the start


@pytest.fixture(scope="module")
def lenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished training of 6 steps by one worker."""
    torch.set_num_threads(1)  # before the first test's own fixtures: more threads give other bits
    folder = tmp_path_factory.mktemp("lenet")
    train(config_for(folder, steps=6), CPU, None)
    return folder


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, dirs_exist_ok=True)
    return target


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def unfinished(folder: Path) -> None:
    (folder / "run" / "summary.json").unlink()
    (folder / "checkpoints" / "done.json").unlink()


def test_a_damaged_newest_checkpoint_is_told_of_and_the_one_before_is_used(
    lenet: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = copy(lenet, tmp_path)
    unfinished(folder)
    newest, second, third, *_ = files.checkpoints(folder / "checkpoints")
    damage(newest / "rank-00000.pt")
    (second / "replicated.pt").unlink()
    train(config_for(folder, steps=6), CPU, None)
    said = capfd.readouterr().err.splitlines()
    assert [line.split(":")[1].split()[0] for line in said[:2]] == ["warning", "warning"]
    assert str(newest) in said[0]
    assert "checksum" in said[0]
    assert str(second) in said[1]
    assert said[2] == f"resuming after step 4 from {third}"
    assert weights(folder) == weights(lenet)
    assert record(folder) == record(lenet)


def test_the_loss_scale_is_one_number_and_is_resumed(
    workers: WorkerPool, tmp_path: Path, image_folder: Path
) -> None:
    """Whichever rank overflows, the scale comes down on both."""
    config = config_for(
        tmp_path / "two", data_dir=image_folder, **SCENARIOS["fp16, whose first steps overflow"]
    )
    workers.run(2, run, config)
    skipped = [row["skipped_steps"] for row in record(tmp_path / "two") if "skipped_steps" in row]
    assert 0 < skipped[-1] < len(skipped)
    for folder in files.checkpoints(tmp_path / "two" / "checkpoints"):
        step = files.read_manifest(folder).step
        scalers = [load(folder, rank, 2).state["scaler"] for rank in range(2)]
        assert scalers[0] == scalers[1]
        assert scalers[0]["scale"] == 2.0 ** (16 - skipped[step - 1])


def test_no_usable_checkpoint_is_an_error_and_not_a_new_start(lenet: Path, tmp_path: Path) -> None:
    folder = copy(lenet, tmp_path)
    for path in files.checkpoints(folder / "checkpoints"):
        damage(path / "rank-00000.pt")
    with pytest.raises(CheckpointError, match=r"none of the 6 checkpoints .* can be used"):
        train(config_for(folder, steps=6), CPU, None)


def test_all_workers_use_the_newest_that_each_can_read(workers: WorkerPool, tmp_path: Path) -> None:
    config = config_for(tmp_path, steps=4)
    workers.run(2, run, config)
    expected = weights(tmp_path)
    unfinished(tmp_path)
    newest, second, *_ = files.checkpoints(tmp_path / "checkpoints")
    damage(newest / "rank-00001.pt")  # rank 0 would not notice
    for path in (newest, second):
        (path / "mark").touch()
    first, other = workers.run(2, stderr_of, config)
    assert f"warning: {newest} is not used: rank 1: " in first
    assert other == ""  # a person reads one log of all
    assert weights(tmp_path) == expected
    assert (second / "mark").exists()  # step 3 was not trained again ...
    assert files.has_manifest(newest)
    assert not (newest / "mark").exists()  # ... and step 4 was


def test_a_retried_job_goes_on_although_its_run_folder_is_there_or_gone(
    lenet: Path, tmp_path: Path
) -> None:
    for name in ("there", "gone"):
        folder = copy(lenet, tmp_path / name)
        unfinished(folder)
        for path in files.checkpoints(folder / "checkpoints")[:3]:
            files.remove(path)
        if name == "gone":
            shutil.rmtree(folder / "run")
        config = config_for(folder, steps=6)
        check(config)
        train(config, CPU, None)
        assert weights(folder) == weights(lenet)
        assert record(folder) == record(lenet)


def test_a_finished_job_that_is_retried_gives_its_results_again(
    lenet: Path, tmp_path: Path
) -> None:
    folder = copy(lenet, tmp_path)
    config = config_for(folder, steps=6)
    check(config)
    train(config, CPU, None)
    assert weights(folder) == weights(lenet)
    assert record(folder) == record(lenet)


@pytest.mark.parametrize("steps", [6, 4])
def test_where_nothing_is_left_to_train_the_figures_are_those_of_who_trained(
    workers: WorkerPool, tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int
) -> None:
    pair = config_for(tmp_path / "pair", steps=6, density=0.01, density_warmup="2 steps")
    before = workers.run(2, run, pair)[0]
    later = {"steps": steps, "density": 0.01, "density_warmup": "2 steps", "workers": 1}
    config = config_for(tmp_path / "pair", **later, run_dir=tmp_path / "elsewhere" / "run")
    capsys.readouterr()
    figures = before | {"seconds": ANY, "checkpoint_seconds": ANY}
    figures |= {"loss": pytest.approx(before["loss"]), "resumed_from_step": 6}
    assert train(config, CPU, None) == figures
    assert before["resumed_from_step"] is None
    said = capsys.readouterr().out
    assert f"the checkpoint is at step 6 (epoch 0.024) and the run ends at step {steps};" in said
    assert "the figures are those of its 2 workers" in said
    assert "step 6/6  test top-1" in said
    assert "(all figures are of the finished run; nothing was trained now)" in said
    assert weights(tmp_path / "elsewhere") == weights(tmp_path / "pair")
    newest = files.checkpoints(tmp_path / "pair" / "checkpoints")[0]
    assert files.read_manifest(newest).world_size == 2


def test_overwrite_starts_over_only_when_the_run_is_done(lenet: Path, tmp_path: Path) -> None:
    folder = copy(lenet, tmp_path)
    config = config_for(folder, steps=6, lr=0.01, overwrite=True)
    check(config)
    train(config, CPU, None)  # another run: all of it anew
    assert len(files.checkpoints(folder / "checkpoints")) == 6
    unfinished(folder)
    first = files.step_folder(folder / "checkpoints", 1)
    (first / "mark").touch()
    train(config, CPU, None)  # killed and retried: goes on
    assert (first / "mark").exists()
    train(config, CPU, None)  # done: starts over
    assert not (first / "mark").exists()


def test_never_keeps_its_hands_off_checkpoints_without_leave(lenet: Path, tmp_path: Path) -> None:
    folder = copy(lenet, tmp_path)
    with pytest.raises(ConfigurationError, match=r"resume: .* holds checkpoints"):
        check(config_for(folder, steps=6, resume="never"))
    train(config_for(folder, steps=3, resume="never", overwrite=True), CPU, None)
    assert len(files.checkpoints(folder / "checkpoints")) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "cifarnet"}, "model is lenet5 there and cifarnet here"),
        ({"lr": 0.5}, "lr is 0.001 there and 0.5 here"),
        ({"optimizer": "sgd"}, "optimizer is adam there and sgd here"),
        ({"density": 0.5}, "density is 0.001 there and 0.5 here"),
        ({"batch_size": 16}, "batch_size is 8 there and 16 here"),
        ({"seed": 3}, "seed is 0 there and 3 here"),
        ({"augment": True}, "augment is False there and True here"),
    ],
)
def test_another_runs_checkpoint_is_refused_before_a_worker_starts(
    lenet: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check(config_for(lenet, steps=6, **changes))


def test_another_model_of_the_same_name_is_refused(
    lenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy(lenet, tmp_path)
    builder = "ggs.train.models.build"
    monkeypatch.setattr(builder, lambda *args: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))
    with pytest.raises(ConfigurationError, match=r"another model: 1\.weight is absent there"):
        train(config_for(folder, steps=6), CPU, None)


def test_more_steps_and_another_log_are_the_same_run(lenet: Path, tmp_path: Path) -> None:
    folder = copy(lenet, tmp_path)
    longer = config_for(folder, steps=9, log_every=1, run_dir=tmp_path / "elsewhere")
    check(longer)
    assert train(longer, CPU, None)["steps"] == 9
    plain = config_for(tmp_path / "plain", steps=9, checkpoint_dir=None, checkpoint_every=None)
    train(plain, CPU, None)
    found = (tmp_path / "elsewhere" / "model.safetensors").read_bytes()
    assert found == weights(tmp_path / "plain")


def test_a_named_checkpoint_is_a_start_and_ones_own_come_first(
    lenet: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    start = str(files.step_folder(lenet / "checkpoints", 2))
    config = config_for(tmp_path, steps=6, resume=start)
    train(config, CPU, None)
    assert f"resuming after step 2 from {start}" in capfd.readouterr().err
    assert weights(tmp_path) == weights(lenet)
    assert len(files.checkpoints(tmp_path / "checkpoints")) == 4
    train(config, CPU, None)
    assert "resuming after step 6" in capfd.readouterr().err
    with pytest.raises(ConfigurationError, match="is no checkpoint and holds none"):
        check(config_for(tmp_path / "x", resume=str(tmp_path / "nothing")))


def test_where_there_is_no_checkpoint_it_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(config_for(tmp_path, steps=1), CPU, None)
    said = capfd.readouterr().err
    assert f"no checkpoint in {tmp_path / 'checkpoints'}: starting at step 0" in said


def test_only_the_last_are_kept(tmp_path: Path) -> None:
    train(config_for(tmp_path, steps=5, keep_checkpoints=2), CPU, None)
    names = [path.name[-1] for path in files.checkpoints(tmp_path / "checkpoints")]
    assert names == ["5", "4"]
    assert not list((tmp_path / "checkpoints").glob("*.partial"))
    assert not list((tmp_path / "checkpoints").glob(".probe*"))


def test_checkpoints_by_the_clock(workers: WorkerPool, tmp_path: Path) -> None:
    """Each takes longer than the interval: never more than one step without one."""
    workers.run(2, run, config_for(tmp_path / "often", steps=5, checkpoint_every="0.0001 seconds"))
    assert len(files.checkpoints(tmp_path / "often" / "checkpoints")) == 5
    workers.run(2, run, config_for(tmp_path / "once", steps=5, checkpoint_every="2 hours"))
    assert len(files.checkpoints(tmp_path / "once" / "checkpoints")) == 1  # the last step's


def undelivered(folder: Path, size: int, sharing: int = 1) -> torch.Tensor:
    """Σ r / N as ``size`` workers take it from a checkpoint, in float64.

    Of the ``sharing`` workers of a node each takes the node's whole residual, and keeps its own part.
    """
    total: Any = 0
    for rank in range(0, size, sharing):
        own = load(folder, rank, size, sharing).state["optimizer"]["ggs"]
        assert own["residual_weight"] == sharing
        total = total + torch.cat([r.double().reshape(-1) for r in own["residual"].values()])
    return total / (size // sharing)


def test_another_number_of_workers_loses_no_update(
    workers: WorkerPool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "epochs": 1,
        "batch_size": 200,
        "density_warmup": "3 steps",
    }  # 10 steps by 2 workers
    workers.run(2, run, config_for(tmp_path / "two", **settings))
    halfway = files.step_folder(tmp_path / "two" / "checkpoints", 6)
    before = undelivered(halfway, 2)
    assert before.abs().max() > 1e-3
    for size in (1, 3, 4, 7):
        after = undelivered(halfway, size)
        assert torch.allclose(after, before, rtol=1e-6, atol=1e-9)
    # 6 of 10 steps are 2,400 images; 4 workers take 800 a step: 3 are done, 2 to go.
    only(tmp_path / "two", 6, tmp_path / "four")
    first, *_ = workers.run(4, run, config_for(tmp_path / "four", **settings))
    assert first["steps"] == 8
    assert first["world_size"] == 4
    assert first["epochs"] == 1.0
    dense = sum(61_706 * 4 * 2 * (size - 1) // size * steps for size, steps in ((2, 6), (4, 2)))
    assert first["compression_ratio_total"] == dense / first["bytes_sent_total"]
    assert [row["step"] for row in record(tmp_path / "four") if row["kind"] == "train"] == [
        2,
        4,
        6,
        8,
    ]
    only(tmp_path / "two", 6, tmp_path / "one")
    alone = train(config_for(tmp_path / "one", **settings), CPU, None)
    assert alone["steps"] == 6 + 8
    assert alone["epochs"] == 1.0
    assert alone["resumed_from_step"] == 6
    newest = files.checkpoints(tmp_path / "one" / "checkpoints")[0]
    assert load(newest, 0, 1, 1).state["loop"]["images"] == 6 * 400 + 8 * 200
    said = capfd.readouterr().err
    assert "warning: 2 -> 1 workers: residuals shared out so that no update is lost" in said
    assert "a step has 200 images instead of 400, 0 images of this epoch come twice" in said
    assert load_file(tmp_path / "one" / "run" / "model.safetensors").keys()


def test_another_number_of_workers_between_two_exchanges_loses_no_update(
    workers: WorkerPool, tmp_path: Path
) -> None:
    settings = {"steps": 8, "batch_size": 100, "every": 4, "optimizer": "adamw", "density": 0.01}
    workers.run(2, run, config_for(tmp_path / "two", **settings))
    halfway = files.step_folder(tmp_path / "two" / "checkpoints", 6)
    before = local_sum(halfway, 2)
    assert before.abs().max() > 1e-4
    residual = undelivered(halfway, 2)
    for size in (1, 3, 4, 7):
        assert torch.allclose(local_sum(halfway, size), before, rtol=1e-6, atol=1e-9)
        assert torch.allclose(undelivered(halfway, size), residual, rtol=1e-6, atol=1e-9)
    for size in (1, 4):
        resumed = tmp_path / f"resumed-by-{size}"
        only(tmp_path / "two", 6, resumed)
        config = config_for(resumed, check_replicas_every="1 steps", **settings)
        summary = workers.run(size, run, config)[0]
        assert summary["steps"] == 8
        last = load(files.step_folder(resumed / "checkpoints", 8), 0, size).state["optimizer"][
            "ggs"
        ]
        assert "local_steps" not in last  # the exchange came when it would have come


def local_sum(folder: Path, size: int) -> torch.Tensor:
    """Σ s / N as ``size`` workers take it from a checkpoint between two exchanges, in float64."""
    total: Any = 0
    for rank in range(size):
        local = load(folder, rank, size).state["optimizer"]["ggs"]["local_steps"]
        assert len(local["steps"]) == 2
        total = total + torch.cat([s.double().reshape(-1) for s in local["sum"].values()])
    return total / size


def in_nodes(folder: Path, workers_per_node: int | None, **settings: Any) -> TrainConfig:
    """A training between nodes, where a worker holds a part of its node's residual."""
    fixed = {"steps": 4, "batch_size": 8, "exchange": "hierarchical", "density_warmup": "2 steps"}
    return config_for(folder, workers_per_node=workers_per_node, **fixed, **settings)


def stored(folder: Path, size: int, sharing: int) -> torch.Tensor:
    """Σ r / N of what ``size`` workers have written, in float64."""
    found: Any = 0
    for rank in range(size):
        own = state.read(folder / files.rank_file(rank))["optimizer"]["ggs"]
        assert own["residual_weight"] == sharing
        found = found + torch.cat([r.double().reshape(-1) for r in own["residual"].values()])
    return found * sharing / size


def test_nodes_of_another_shape_lose_no_update(workers: WorkerPool, tmp_path: Path) -> None:
    """As a job meets it that is retried where more, or fewer, workers fit on a node."""
    workers.run(4, run, in_nodes(tmp_path / "pairs", 2))
    halfway = files.step_folder(tmp_path / "pairs" / "checkpoints", 3)
    before = stored(halfway, 4, 2)
    assert before.abs().max() > 1e-3
    for size, sharing in [(4, 1), (4, 4), (8, 2), (2, 2), (2, 1), (6, 3), (1, 1)]:
        after = undelivered(halfway, size, sharing)
        assert torch.allclose(after, before, rtol=1e-6, atol=1e-9), (size, sharing)
    for workers_per_node in (1, 4):
        resumed = tmp_path / f"nodes-of-{workers_per_node}"
        only(tmp_path / "pairs", 3, resumed)
        config = in_nodes(resumed, workers_per_node)
        check(config)
        assert workers.run(4, stderr_of, config)[0].endswith(
            f"ggs: warning: 2 -> {workers_per_node} workers that share a residual: shared out so that "
            "no update is lost\n"
        )
        again = files.step_folder(resumed / "checkpoints", 4)
        assert stored(again, 4, workers_per_node).abs().max() > 1e-3

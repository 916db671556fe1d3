"""What is checked before a worker starts: files, names, sizes, devices."""

import errno
from pathlib import Path

import pytest
import torch

from ggs.errors import ConfigurationError, GGSError, UnsupportedError
from ggs.train import run_folder as runs
from ggs.train.duration import Duration
from ggs.train.records import Summary
from ggs.train.start import parse_and_check


def test_the_defaults_pass() -> None:
    config = parse_and_check([])
    assert (config.model, config.data, config.method, config.density) == (
        "lenet5",
        "mnist5k",
        "ggs",
        0.001,
    )


def test_the_example_passes(root: Path) -> None:
    config = parse_and_check(["--config", str(root / "examples/quickstart.yaml")])
    assert config.workers == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--model", "lenet"], ["model", "lenet", "did you mean lenet5?"]),
        (["--model", "resnet19"], ["model", "resnet19", "did you mean resnet18?"]),
        (["--model", "qqqqqq"], ["model", "qqqqqq", "package.module:function"]),
        (["--model", "nowhere.at.all:f"], ["nowhere", "package.module:function"]),
        (["--model", "json:nothing"], ["json", "nothing"]),
        (["--model", ":"], ["model"]),
        (["--model", "resnet18", "--model-options", "{wings: 2}"], ["model_options", "wings"]),
        (["--model-options", "{num_classes: -1}"], ["model_options", "lenet5", "-1"]),
        (["--model-options", "{num_classes: 3}"], ["model", "lenet5", "(2, 3)"]),
        (["--model-options", "{num_classes: 1.5}"], ["model_options", "lenet5", "1.5"]),
        (["--model-options", "{image_size: 3}"], ["lenet5", "image_size"]),
        (
            ["--batch-size", "1", "--model", "resnet18", "--image-size", "32"],
            ["batch_size: 1", "resnet18", "32x32", "give at least 2"],
        ),
        (["--model", "vgg11"], ["vgg11", "3x28x28", "image_size 224"]),
        (["--optimizer", "adamm"], ["optimizer", "adamm", "did you mean adam?"]),
        (["--optimizer-options", "{beta: 1}"], ["optimizer_options", "beta", "betas"]),
        (["--optimizer-options", "{lr: 1}"], ["optimizer_options", "lr"]),
        (["--optimizer-options", "{betas: [2, 3]}"], ["betas", "2"]),
        (["--optimizer-options", "{betas: [0.9]}"], ["optimizer", "adam", "betas"]),
        (["--device", "cpu", "--optimizer-options", "{capturable: true}"], ["adam", "capturable"]),
        (["--optimizer-options", "{eps: .nan}"], ["optimizer_options", "nan", "finite"]),
        (["--model-options", "{a: !!timestamp 2020-01-01}"], ["model_options", "2020", "number"]),
        (["--model-options", "{a: !!timestamp b}"], ["model_options", "not readable"]),
        (["--momentum", "0.9"], ["adam", "momentum"]),
        (
            [
                "--optimizer",
                "sgd",
                "--momentum",
                "0.9",
                "--optimizer-options",
                "{dampening: '1e-1'}",
            ],
            [
                "optimizer: sgd refuses",
                "dampening is a text",
                "without quotes",
            ],  # at its second step
        ),
        (["--optimizer-options", "{eps: '1e-8'}"], ["adam refuses", "eps is a text"]),
        (["--run-dir", ""], ["run_dir", "is empty"]),
        (["--run-dir", "a\0b"], ["run_dir", "NUL"]),
        (["--run-dir", "a/" + 300 * "r"], ["run_dir", "too long (302 bytes)"]),
        (["--run-dir", 2100 * "r/"], ["run_dir", "too long (4,200 bytes)"]),
        (["--run-dir", "\udcff"], ["run_dir", "not UTF-8"]),
        (["--checkpoint-dir", 300 * "c"], ["checkpoint_dir", "too long"]),
        (["--data-dir", "", "--data", "mnist"], ["data_dir", "is empty"]),
        (["--checkpoint-dir", "/tmp", "--resume", "\0"], ["resume", "NUL"]),
        (["--run-dir", "/dev/null/a"], ["run_dir", "/dev/null is a file"]),
        (["--config", "a\0b"], ["config", "cannot read"]),
        (["--config", 300 * "c"], ["config", "cannot read"]),
        (["--exchange", "splt"], ["exchange", "splt", "did you mean split?"]),
        (["--steps", 25 * "9"], ["steps", "at most"]),
        (["--epochs", 25 * "9"], ["epochs", "at most"]),
        (["--collective-timeout", "1e300"], ["collective_timeout", "at most 604800"]),
        (["--checkpoint-timeout", "1e300"], ["checkpoint_timeout", "at most 604800"]),
        (["--workers-per-node", "0"], ["workers_per_node", "0", "at least 1"]),
        (["--data", "mnist", "--data-dir", "/nowhere"], ["data_dir", "/nowhere", "--download"]),
        (["--data", "cifar10", "--data-dir", "/nowhere"], ["data_dir", "cifar-10-batches-py"]),
        (["--data", "imagefolder", "--data-dir", "/nowhere"], ["/nowhere/train", "CLASS"]),
        (["--batch-size", "4001"], ["batch_size", "4001", "4,000"]),
        (["--batch-size", "1000", "--workers", "3", "--accumulate", "2"], ["6,000 images"]),
        (["--backend", "nccl", "--device", "cpu"], ["backend", "nccl", "gloo"]),
        (["--method", "dgc"], ["method: dgc", "adam", "--optimizer sgd --momentum 0.9"]),
        (["--budget", "2 km"], ["budget", "'2 km'", "'0.4 %'"]),
        (["--budget", "2 kB", "--density", "0.1"], ["budget: 2 kB", "density 0.1"]),
        (["--budget", "2 kB", "--method", "dense"], ["budget: 2 kB", "--method ggs"]),
        (
            ["--momentum-follows-density", "--method", "gs"],
            ["momentum_follows_density", "method is gs", "--method ggs"],
        ),
        (["--every", "0"], ["every: 0", "at least 1"]),
        (
            ["--every", "2", "--method", "gs"],
            ["every: 2", "method is gs", "--every 1 or --method ggs"],
        ),
        (["--every", "2", "--method", "dense"], ["every: 2", "method is dense"]),
        (
            ["--every", "2", "--exchange", "hierarchical"],
            ["every: 2", "hierarchical", "--exchange auto"],
        ),
        (["--workers", "0"], ["workers: 0", "or leave workers out (one per GPU, else 1)"]),
        (["--steps", "0"], ["steps: 0", "or leave steps out"]),
    ],
)
def test_a_mistake_is_one_line(argv: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_and_check(argv)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_numbers_in_optimizer_options_need_no_point() -> None:
    sgd = ["--optimizer", "sgd", "--momentum", "0.9", "--optimizer-options"]
    assert parse_and_check([*sgd, "{dampening: 1e-1}"]).optimizer_options == {"dampening": 0.1}
    assert parse_and_check(["--optimizer-options", "{eps: 1e-8}"]).optimizer_options == {
        "eps": 1e-8
    }


@pytest.mark.parametrize("name", ["lbfgs", "sparseadam", "asgd"])
def test_optimizers_that_cannot_work_are_refused_by_name(name: str) -> None:
    with pytest.raises((UnsupportedError, ConfigurationError), match=r"(?i)" + name):
        parse_and_check(["--optimizer", name])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="device: cuda"):
        parse_and_check(["--device", "cuda"])


@pytest.mark.parametrize(
    "model", ["cifarnet", "alexnet", "densenet121", "resnet18", "regnet_y_400mf", "vit_b_16"]
)
def test_models_pass_on_images_of_their_size(model: str) -> None:
    size = "224" if model == "vit_b_16" else "32"
    assert parse_and_check(["--model", model, "--image-size", size]).model == model


def test_a_runs_folder_that_leads_nowhere_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").symlink_to("nowhere")
    with pytest.raises(ConfigurationError, match="cannot create runs/lenet5"):
        runs.RunFolder(parse_and_check([]))


def test_a_finished_run_is_not_replaced(tmp_path: Path) -> None:
    config = parse_and_check(["--run-dir", str(tmp_path), "--lr", "0.5"])
    folder = runs.RunFolder(config)
    assert parse_and_check(
        ["--run-dir", str(tmp_path), "--lr", "0.5"]
    )  # unfinished, the same: a restart
    with pytest.raises(ConfigurationError, match=r"unfinished run with lr 0\.5, here it is 0\.25"):
        parse_and_check(["--run-dir", str(tmp_path), "--lr", "0.25"])
    folder.finish(Summary())
    with pytest.raises(ConfigurationError, match="finished run; give another --run-dir"):
        parse_and_check(["--run-dir", str(tmp_path), "--lr", "0.5"])
    assert parse_and_check(["--run-dir", str(tmp_path), "--overwrite"])


def test_a_run_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GGSError, match="is a file"):
        parse_and_check(["--run-dir", str(tmp_path / "file")])


@pytest.mark.parametrize("flag", ["--run-dir", "--checkpoint-dir"])
def test_a_folder_that_takes_no_files_even_from_root_is_refused_before_a_worker_starts(
    flag: str,
) -> None:
    with pytest.raises(ConfigurationError, match=r"_dir: /proc .*be written to.*another folder"):
        parse_and_check([flag, "/proc/x"])


def test_a_full_storage_is_left_to_the_run_which_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert parse_and_check(["--checkpoint-dir", str(tmp_path)])


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        (Duration(0), 0),
        (Duration(2), 20),
        (Duration(0.25), 2),
        (Duration(0.001), 1),
        (Duration(7, "steps"), 7),
    ],
)
def test_durations_in_steps(duration: Duration, steps: int) -> None:
    assert duration.steps(steps_per_epoch=10) == steps

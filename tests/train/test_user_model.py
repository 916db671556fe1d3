"""Models of one's own: every mistake in them is one line, before anything trains."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ggs.errors import ConfigurationError
from ggs.train import user_model, worker
from ggs.train.arguments import build
from ggs.train.config import TrainConfig
from ggs.train.smoke_test import run_smoke_test
from ggs.train.start import parse_and_check
from ggs.train.worker import train

CPU = torch.device("cpu")

MODELS = """
import torch
from torch import nn

notcallable = 3

class Flat(nn.Module):
    def __init__(self, change, classes=10):
        super().__init__()
        self.linear = nn.Linear(784, classes)
        self.change = change

    def forward(self, images):
        return self.change(self.linear(images.flatten(1)))

def answers(kind):
    return Flat({
        "dict": lambda scores: {"scores": scores},
        "list": lambda scores: [scores],
        "none": lambda scores: None,
        "scalar": lambda scores: scores.sum(),
        "empty": lambda scores: (),
        "none_first": lambda scores: (None, scores),
        "bad_second": lambda scores: (scores, 3),
        "answers": lambda scores: scores.argmax(1),
        "integers": lambda scores: scores.int(),
        "detached": lambda scores: scores.detach(),
        "quits": lambda scores: exit(3),
        "extra": lambda scores: scores[:-1],
    }[kind])

def trains_only():
    return TrainsOnly()

class TrainsOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat = Flat(lambda scores: scores)

    def forward(self, images):
        return self.flat(images) if self.training else {"scores": self.flat(images)}

def few(num_classes, classes=8):
    return Flat(lambda scores: scores, classes)

def frozen():
    return Flat(lambda scores: scores).requires_grad_(False)

def nothing():
    return nn.Flatten()

def half():
    return Flat(lambda scores: scores).half()

def double():
    return Flat(lambda scores: scores).double()

def looks_up(**options):
    return {}["width"]

def fails():
    raise RuntimeError("no\\nluck")

class Extra(Flat):
    def get_extra_state(self):
        return 3

def extra():
    return Extra(lambda scores: scores)

def norm():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.BatchNorm1d(10))
"""


@pytest.fixture
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.py").write_text(MODELS)
    (tmp_path / "bad_syntax.py").write_text("def f(:\n")
    (tmp_path / "bad_runtime.py").write_text("raise RuntimeError('at import')\n")
    (tmp_path / "bad_exit.py").write_text("import sys\nsys.exit(4)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("odd", "bad_syntax", "bad_runtime", "bad_exit"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)


def one_line(caught: pytest.ExceptionInfo[ConfigurationError], words: list[str]) -> None:
    message = str(caught.value)
    assert "\n" not in message
    assert "Error:" not in message  # OpenPAI would take it for a reason of its own
    assert all(word in message for word in words), message


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("bad_syntax:f", ["bad_syntax", "SyntaxError", "line 1"]),
        ("bad_runtime:f", ["bad_runtime", "at import", "bad_runtime.py, line 1"]),
        ("bad_exit:f", ["bad_exit", "SystemExit 4", "line 2"]),
        ("../x:f", ["'../x'", "package.module:function"]),
        ("odd:", ["odd", "no function ''"]),
        ("odd:Flat.x", ["no function 'Flat.x'", "package.module:function"]),
        ("odd:froze", ["no function 'froze'", "did you mean frozen?"]),
        ("os:path", ["os:path", "is a module, not a function"]),
        ("odd:notcallable", ["odd:notcallable is a int, not a function"]),
    ],
)
def test_what_is_no_function_is_told_before_workers_start(model: str, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_and_check(["--model", model])
    one_line(caught, ["model: ", *words])


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_options": {"kind": "dict"}}, ["returned a dict", "scores, (batch, 10)"]),
        ({"model_options": {"kind": "list"}}, ["returned a list"]),
        ({"model_options": {"kind": "none"}}, ["returned a NoneType"]),
        ({"model_options": {"kind": "scalar"}}, ["returned () for 16 images"]),
        ({"model_options": {"kind": "empty"}}, ["returned a tuple"]),
        ({"model_options": {"kind": "none_first"}}, ["returned a NoneType", "a tuple with them"]),
        ({"model_options": {"kind": "bad_second"}}, ["returned a int", "a tuple with them"]),
        ({"model_options": {"kind": "answers"}}, ["returned (16,)"]),
        ({"model_options": {"kind": "integers"}}, ["torch.int32"]),
        ({"model_options": {"kind": "extra"}}, ["returned (15, 10) for 16 images"]),
        ({"model_options": {"kind": "detached"}}, ["do not depend on a weight", "detach()"]),
        ({"model_options": {"kind": "quits"}}, ["16x1x28x28", "SystemExit 3", "odd.py, line"]),
        ({"model_options": {"kind": "other"}}, ["KeyError 'other'", "odd.py, line"]),
        ({"model_options": {"sort": 1}}, ["TypeError", "sort"]),
        ({"model": "odd:few"}, ["returned (16, 8)", "(batch, 10)"]),
        ({"model": "odd:few", "model_options": {"num_classes": 3}}, ["returned (16, 8)"]),
        ({"model": "odd:frozen"}, ["no weight to train"]),
        ({"model": "odd:nothing"}, ["no weight to train"]),
        ({"model": "odd:half"}, ["weights are float16, images are float32"]),
        ({"model": "odd:double"}, ["weights are float64, images are float32"]),
        ({"model": "odd:looks_up"}, ["KeyError 'width'", "odd.py, line"]),
        ({"model": "odd:fails"}, ["RuntimeError no luck", "odd.py, line"]),
        ({"model": "odd:trains_only"}, ["returned a dict"]),
        ({"model": "odd:norm", "batch_size": 1}, ["1x1x28x28", "more than 1 value per channel"]),
        ({"model": "odd:extra"}, ["_extra_state", "is a int", "only tensors"]),
        ({"model": "builtins:dict"}, ["returned a dict, not a torch.nn.Module"]),
        ({"model": "regnet_y_400mf", "model_options": {"num_classes": 3}}, ["returned (16, 3)"]),
        ({"model": "regnet_y_400mf", "batch_size": 1}, ["more than 1 value per channel"]),
    ],
    ids=str,
)
def test_a_mistake_in_a_model_is_one_line(
    tmp_path: Path, settings: dict[str, Any], words: list[str]
) -> None:
    given = {"model": "odd:answers", "device": "cpu", "image_size": 28, "run_dir": tmp_path / "run"}
    config = build(TrainConfig, {**given, **settings})
    with pytest.raises(ConfigurationError) as caught:
        train(config, CPU, None)
    one_line(caught, ["model: ", config.model, *words])
    assert not (tmp_path / "run").exists()


class Everything(nn.Module):
    """Batch norm, dropout, a counter, a replaced buffer, a lazily made one, and noise of its own."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(784, num_classes), nn.BatchNorm1d(num_classes)
        self.calls = 0
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("late", None)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen = self.seen + images.sum().detach()
        if self.late is None:
            self.late = images.mean().detach()
        scores = self.norm(self.linear(images.flatten(1))) + 0.01 * self.calls + self.late
        return nn.functional.dropout(scores, 0.2, self.training) * (1 + 1e-3 * torch.rand(()))


def test_the_trial_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{__name__}:Everything"
    losses = []
    for trial in (True, False):
        if not trial:
            monkeypatch.setattr(worker, "run_smoke_test", lambda *_: None)
        settings = {"model": name, "steps": 4, "log_every": 1, "device": "cpu", "evaluate_every": 0}
        folder = tmp_path / str(trial)
        train(build(TrainConfig, {**settings, "run_dir": folder}), CPU, None)
        rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        losses.append([row["loss"] for row in rows])
        losses.append([(folder / "model.safetensors").read_bytes()])
    assert losses[:2] == losses[2:]


def test_the_trial_restores_the_model_itself() -> None:
    model = Everything(10)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    run_smoke_test(build(TrainConfig, {"model": "own"}), model, (1, 28, 28), 10)
    assert model.calls == 0
    assert model.late is None
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_memory_that_is_short_is_no_mistake_of_the_model() -> None:
    with (
        pytest.raises(torch.OutOfMemoryError),
        user_model.user_errors("model: mine fails"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")

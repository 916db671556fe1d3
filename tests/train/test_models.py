"""Models by name."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ggs.errors import ConfigurationError
from ggs.train import models


@pytest.mark.parametrize(
    ("name", "channels", "size", "classes", "parameters"),
    [
        ("lenet5", 1, 28, 10, 61_706),
        ("lenet5", 1, 32, 10, 61_706),
        ("lenet5", 3, 32, 10, 62_006),
        ("cifarnet", 3, 32, 10, 145_578),
        ("alexnet", 3, 32, 10, 2_472_266),
        ("alexnet", 3, 224, 1000, 61_100_840),  # the figure in torchvision's documentation
        ("densenet121", 3, 32, 10, 6_956_426),
        ("densenet121", 3, 224, 1000, 7_978_856),  # the figure in torchvision's documentation
    ],
)
def test_parameter_counts(
    name: str, channels: int, size: int, classes: int, parameters: int
) -> None:
    with torch.device("meta"):
        model = models.build(name, classes, channels, size, {})
    models.check_images(name, model, channels, size, classes)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_small_densenet_keeps_the_resolution_until_its_first_transition() -> None:
    model = models.build("densenet121", 10, 3, 32, {})
    features = model.get_submodule("features")
    shapes = {}
    for name in ("relu0", "denseblock1", "transition1"):
        features.get_submodule(name).register_forward_hook(
            lambda _, __, output, name=name: shapes.update({name: tuple(output.shape[1:])})
        )
    model.eval()(torch.zeros(1, 3, 32, 32))
    assert shapes == {
        "relu0": (64, 32, 32),
        "denseblock1": (256, 32, 32),
        "transition1": (128, 16, 16),
    }


def test_every_torchvision_classifier_has_a_name() -> None:
    names = models.names()
    assert len(names) >= 80
    assert {"resnet50", "mobilenet_v3_small", "vit_b_16", "efficientnet_b0"} <= set(names)
    assert not [name for name in names if "quantized" in name or "rcnn" in name]


def test_options_reach_the_model() -> None:
    model = models.build("vgg11", 10, 3, 32, {"dropout": 0.125})
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.125}


def test_auxiliary_classifiers_count_in_training_only() -> None:
    scores, first, second = torch.randn(3, 4, 10).unbind()
    labels = torch.arange(4)
    output = (scores, None, first, second)
    expected = F.cross_entropy(scores, labels) + 0.3 * (
        F.cross_entropy(first, labels) + F.cross_entropy(second, labels)
    )
    torch.testing.assert_close(models.training_loss(output, labels), expected)
    assert models.logits(output) is scores
    assert models.training_loss(scores, labels) == F.cross_entropy(scores, labels)


def test_a_model_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(
        "from torch import nn\n"
        "def linear(num_classes, in_channels, width=1):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * width, num_classes))\n"
        "def number():\n"
        "    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/somewhere/else"])
    model = models.build("own_models:linear", 7, 3, 99, {"width": 5})
    assert [tuple(p.shape) for p in model.parameters()] == [(7, 15), (7,)]
    with pytest.raises(ConfigurationError, match=r"returned a int, not a torch\.nn\.Module"):
        models.build("own_models:number", 7, 3, 99, {})
    with pytest.raises(ConfigurationError, match="did you mean linear"):
        models.build("own_models:liner", 7, 3, 99, {})


def test_a_model_that_answers_in_the_wrong_shape_is_refused() -> None:
    model = SimpleNamespace(eval=lambda: lambda images: images.flatten(1))
    with pytest.raises(ConfigurationError, match=r"it returns \(2, 12\), not \(batch, 10\)"):
        models.check_images("mine", model, 3, 2, 10)  # type: ignore[arg-type]

"""Models by name: the four of the GGS paper, every torchvision classifier, and a person's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ggs.errors import ConfigurationError
from ggs.extras import require
from ggs.text import shorten
from ggs.train import user_model
from ggs.train.error_translation import is_out_of_memory
from ggs.train.names import require_model

SMALL_IMAGE = 64
"""Pixels. Up to this side alexnet and densenet121 are the variants made for CIFAR."""

AUXILIARY_WEIGHT = 0.3
"""Weight of auxiliary classifiers (GoogLeNet, Inception) in the loss, as in Szegedy et al., 2015."""


class LeNet5(nn.Module):
    """LeNet-5 (LeCun et al., 1998) with ReLU and max pooling; 61,706 parameters for 1x28x28 images."""

    def __init__(self, num_classes: int = 10, in_channels: int = 1, image_size: int = 28) -> None:
        super().__init__()
        padding = 2 if image_size == 28 else 0  # the original pads 28x28 digits to 32x32
        side = ((image_size + 2 * padding - 4) // 2 - 4) // 2
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 6, 5, padding=padding),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(16 * side * side, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, num_classes) of images (batch, in_channels, image_size, image_size)."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


class CifarNet(nn.Module):
    """Caffe's cifar10_quick network; 145,578 parameters for 3x32x32 images and 10 classes."""

    def __init__(self, num_classes: int = 10, in_channels: int = 3, image_size: int = 32) -> None:
        super().__init__()
        side = image_size
        for _ in range(3):
            side = -(-(side - 3) // 2) + 1
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 32, 5, padding=2),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.ReLU(),
            nn.Conv2d(32, 32, 5, padding=2),
            nn.ReLU(),
            nn.AvgPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.AvgPool2d(3, 2, ceil_mode=True),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * side * side, 64), nn.Linear(64, num_classes)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, num_classes) of images (batch, in_channels, image_size, image_size)."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


class CifarAlexNet(nn.Module):
    """AlexNet as it is commonly cut down for 32x32 images; 2,472,266 parameters for 10 classes.

    The five convolutions of Krizhevsky's one-tower AlexNet, pooled to one pixel, and one linear layer.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(1),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(256, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, num_classes) of images (batch, 3, side, side)."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


def cifar_densenet121(num_classes: int = 10, **options: Any) -> nn.Module:
    """DenseNet-121 (Huang et al., 2017) with a 3x3 first layer and no early pooling, for small images."""
    densenet = _torchvision_models().DenseNet
    model: nn.Module = densenet(32, (6, 12, 24, 16), 64, num_classes=num_classes, **options)
    features = model.get_submodule("features")
    features.conv0 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(features.conv0.weight)
    del features.pool0
    return model


_OWN: dict[str, Callable[..., nn.Module]] = {"lenet5": LeNet5, "cifarnet": CifarNet}
_SMALL: dict[str, Callable[..., nn.Module]] = {
    "alexnet": CifarAlexNet,
    "densenet121": cifar_densenet121,
}


def names() -> list[str]:
    """All names that need no colon, sorted."""
    torchvision = _torchvision_models()
    return sorted({*_OWN, *torchvision.list_models(module=torchvision)})


def _torchvision_models() -> Any:
    """torchvision.models, imported for who asks for one of them: that takes a second of a processor."""
    return require("torchvision.models", "train")


def input_channels(name: str, channels: int) -> int:
    """Channels that the model is fed for images of ``channels``: torchvision's models want three."""
    return channels if name in _OWN or ":" in name else 3


def build(
    name: str, num_classes: int, in_channels: int, image_size: int, options: dict[str, Any]
) -> nn.Module:
    """The model, freshly initialised from torch's global generator.

    A person's own ``package.module:function`` gets those of ``num_classes``, ``in_channels`` and
    ``image_size`` that its signature names, see ``ggs.train.user_model``. Raises ConfigurationError for an
    unknown name and for options that the model does not take.
    """
    data = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    if ":" in name:
        return user_model.build(name, data, options)
    if name in _OWN:
        builder, arguments = _OWN[name], data
    elif name in _SMALL and image_size <= SMALL_IMAGE:
        builder, arguments = _SMALL[name], {"num_classes": num_classes}
    else:
        require_model(name, names())
        builder = _torchvision_models().get_model_builder(name)
        arguments = {"num_classes": num_classes, **_torchvision_arguments(name, image_size)}
    try:
        return builder(**{**arguments, **options})
    except NotImplementedError:  # of the meta device, see ggs.train.check
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ConfigurationError(
            f"model_options: {name} refuses {options}: {_first_line(error)}"
        ) from None


def needs_smoke_test(name: str) -> bool:
    """Whether ``check_images`` cannot tell: of one's own models, and of RegNets, which compute with
    tensors while they are built."""
    return ":" in name or name.startswith("regnet_")


def check_images(
    name: str, model: nn.Module, channels: int, size: int, num_classes: int, batch_size: int = 2
) -> None:
    """Run a batch without storage (``meta`` device) through ``model``, which lives there too.

    Raises ConfigurationError where the model cannot take images of this size, or its batch-norm layers
    cannot take so few of them.
    """
    images = torch.empty(batch_size, channels, size, size, device="meta")
    try:
        with torch.no_grad():
            output = logits(model.eval()(images))
        if output.shape != (batch_size, num_classes):
            raise ValueError(f"it returns {tuple(output.shape)}, not (batch, {num_classes})")
    except Exception as error:
        raise ConfigurationError(
            f"model: {name} cannot take images of {channels}x{size}x{size} ({_first_line(error)}); "
            "try image_size 224 or another model"
        ) from None
    if batch_size > 1:
        return
    try:
        with torch.no_grad():
            model.train()(images)
    except ValueError as error:
        raise ConfigurationError(
            f"batch_size: 1 is too little for {name} with images of {size}x{size} "
            f"({_first_line(error)}); give at least 2, or a larger image_size"
        ) from None


def _first_line(error: Exception) -> str:
    return shorten(str(error).splitlines()[0], 200) if str(error) else type(error).__name__


def logits(output: Any) -> Tensor:
    """The class scores in a model's output, which may be a tuple with auxiliary ones behind them."""
    scores: Tensor = output[0] if isinstance(output, tuple) else output
    return scores


def training_loss(output: Any, labels: Tensor) -> Tensor:
    """Mean cross-entropy, with the auxiliary classifiers that GoogLeNet and Inception have."""
    loss = F.cross_entropy(logits(output), labels)
    if isinstance(output, tuple):
        for auxiliary in output[1:]:
            if auxiliary is not None:
                loss = loss + AUXILIARY_WEIGHT * F.cross_entropy(auxiliary, labels)
    return loss


def _torchvision_arguments(name: str, image_size: int) -> dict[str, Any]:
    if name.startswith("vit_"):
        return {"image_size": image_size}
    if name.startswith("maxvit"):
        return {"input_size": (image_size, image_size)}
    if name in ("googlenet", "inception_v3"):
        return {"init_weights": True, "weights": None}
    return {}

"""Small models, each with one property that a flat view of the parameters could get wrong."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Unused(nn.Module):
    """One layer takes no part in the forward pass, one only on even ranks."""

    def __init__(self, use_side: bool = True) -> None:
        super().__init__()
        self.used, self.side, self.unused = nn.Linear(12, 5), nn.Linear(12, 5), nn.Linear(7, 3)
        self.use_side = use_side

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        y: Tensor = self.used(x)
        return y + self.side(x) if self.use_side else y


class Tied(nn.Module):
    """Two layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)
        self.second.weight = self.first.weight
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.second(torch.tanh(self.first(x.flatten(1)))))
        return y


class NonContiguous(nn.Module):
    """A weight with gaps in its memory and a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.gaps = nn.Parameter(torch.randn(12, 10)[:, ::2])
        self.transposed = nn.Parameter(torch.randn(5, 12).t())
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.empty = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x.flatten(1) @ (self.gaps + self.transposed) * self.scale
        return y


def plain() -> nn.Module:
    """Two linear layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5))


def batchnorm() -> nn.Module:
    """Convolution and batch-norm; the last batch-norm has no affine parameters.

    No bias before a batch-norm: its gradient would be rounding noise, which Adam makes full steps of.
    """
    return nn.Sequential(
        nn.Conv2d(3, 8, 2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8, 5, bias=False),
        nn.BatchNorm1d(5, affine=False),
    )


def channels_last() -> nn.Module:
    """A convolution in channels-last memory format."""
    return batchnorm().to(memory_format=torch.channels_last)


def frozen() -> nn.Module:
    """The first layer is not trained."""
    model = plain()
    model[1].weight.requires_grad_(False)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": plain,
    "batchnorm": batchnorm,
    "channels_last": channels_last,
    "frozen": frozen,
    "unused": Unused,
    "tied": Tied,
    "non_contiguous": NonContiguous,
}


def build(name: str, dtype: torch.dtype = torch.float32, seed: int = 1) -> nn.Module:
    """The model called ``name``, initialised from ``seed``."""
    torch.manual_seed(seed)
    return MODELS[name]().to(dtype)


def batch(step: int, rank: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Eight images (8, 3, 2, 2) and their classes; other ones for every step and rank."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    images = torch.randn(8, 3, 2, 2, generator=generator).to(dtype)
    return images, torch.randint(0, 5, (8,), generator=generator)


def backward(model: nn.Module, step: int, rank: int) -> float:
    """Fresh gradients of ``model`` on the batch of this step and rank; the loss."""
    dtype = next(model.parameters()).dtype
    images, classes = batch(step, rank, dtype)
    model.zero_grad()
    scores = model(images)
    if dtype in (torch.bfloat16, torch.float16):
        scores = scores.float()
    loss = nn.functional.cross_entropy(scores, classes)
    loss.backward()
    return loss.item()

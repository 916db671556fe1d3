"""Labelled images as the training loop reads them: in batches, prepared for the model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ggs.train.augment import crop_and_mirror
from ggs.train.config import TrainConfig
from ggs.train.seeds import AUGMENTATION, generator

DEVICE_LIMIT = 4 << 30
"""Bytes. Image sets up to this size are kept on the GPU, larger ones in the CPU's memory."""


@dataclass(frozen=True)
class DataSpec:
    """What a data set looks like, before it is read."""

    channels: int
    """That the model is fed, of which images with one are copies."""
    image_size: int
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    train_images: int | None = None
    """None where counting them means reading a large folder."""
    files: tuple[str, ...] = ()
    """Where they are expected, relative to data_dir."""
    mirror: bool = False
    """Whether a mirrored image is still an image of its class."""


class ImageSet(Protocol):
    """Images with labels, read in batches."""

    def __len__(self) -> int: ...

    def batches(
        self, order: Tensor, batch_size: int, epoch: int | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the images at ``order``: (b, channels, side, side) float32 and (b,) int64, on the
        worker's device. With ``epoch`` they are augmented if the configuration says so; starting at a
        later batch of the epoch gives the same pixels as coming to it.
        """


class TensorImages:
    """Images that are all in memory, as uint8."""

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        config: TrainConfig,
        data: DataSpec,
        device: torch.device,
    ) -> None:
        self._labels = labels.long().to(device)
        self._images = images.to(device) if images.nbytes <= DEVICE_LIMIT else images
        self._prepare = Preparation(data, device, config.channels_last)
        self._seed, self._augment, self._mirror = config.seed, config.augment, data.mirror

    def __len__(self) -> int:
        return len(self._labels)

    def batches(
        self, order: Tensor, batch_size: int, epoch: int | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """See :class:`ImageSet`."""
        for start in range(
            0, len(order), batch_size
        ):  # torch.split makes one part of an empty order
            part = order[start : start + batch_size]
            images = self._images[part.to(self._images.device)]
            if epoch is not None and self._augment:
                # The batch's first image is in no other batch of the epoch.
                numbers = generator(self._seed, AUGMENTATION, epoch, int(part[0]))
                images = crop_and_mirror(images, self._mirror, numbers)
            yield self._prepare(images), self._labels[part.to(self._labels.device)]


class Preparation:
    """uint8 images to what the model sees: float32, normalised, scaled, with the right channels."""

    def __init__(self, data: DataSpec, device: torch.device, channels_last: bool) -> None:
        self._mean = torch.tensor(data.mean, device=device).view(1, -1, 1, 1)
        self._std = torch.tensor(data.std, device=device).view(1, -1, 1, 1)
        self._size, self._channels, self._device = data.image_size, data.channels, device
        self._format = torch.channels_last if channels_last else torch.contiguous_format

    def __call__(self, images: Tensor) -> Tensor:
        """(b, c, h, w) uint8 anywhere to (b, channels, size, size) float32 on the device."""
        scaled = images.to(self._device, non_blocking=True).float() / 255
        if scaled.shape[-1] != self._size:
            size = (self._size, self._size)
            scaled = F.interpolate(scaled, size, mode="bilinear", antialias=True)
        normalised = (scaled - self._mean) / self._std
        return normalised.expand(-1, self._channels, -1, -1).contiguous(memory_format=self._format)

"""Any folder of images, one sub-folder per class, as torchvision's ImageFolder has it."""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms import functional

from ggs.errors import ConfigurationError, DataError
from ggs.launch.processes import die_with_parent
from ggs.text import one_line
from ggs.train.config import TrainConfig
from ggs.train.image_index import ImageIndex, class_folders, index
from ggs.train.image_set import DataSpec, ImageSet, Preparation, TensorImages
from ggs.train.models import SMALL_IMAGE
from ggs.train.seeds import AUGMENTATION, derive

_MARGIN = 256 / 224
"""Large test images are scaled to this multiple of the size, of which the centre is cut out."""

_SOCKET_PATH, _SOCKET_NAME = 107, len("/pymp-abcdefgh/listener-abcdefgh")
"""The longest path of a socket in bytes, and what multiprocessing appends to the temporary folder."""

_LONGEST = 16
"""Longer images, in multiples of their shorter side, are cut to this before they are scaled."""

_ORIENTATION = 0x0112
"""EXIF's tag of how a camera was held: of these numbers, the picture is stored turned or mirrored."""
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's


def spec(config: TrainConfig) -> DataSpec:
    """What the images of ``config.data_dir`` look like. Raises ConfigurationError and DataError."""
    train, _ = folders(config.data_dir)
    classes = len(class_folders(train))
    return DataSpec(3, config.image_size or 224, classes, _MEAN, _STD, mirror=True)


def folders(data_dir: Path) -> tuple[Path, Path]:
    """The train/ and the test/ or val/ folder of an ImageFolder. Raises ConfigurationError."""
    train = data_dir / "train"
    test = next(
        (data_dir / n for n in ("test", "val") if (data_dir / n).is_dir()), data_dir / "test"
    )
    for folder in (train, test):
        if not folder.is_dir() or not class_folders(folder):
            raise ConfigurationError(
                f"data_dir: {folder} is missing or empty; imagefolder expects train/CLASS/*.jpg and "
                f"test/CLASS/*.jpg (or val/) in {data_dir}"
            )
    return train, test


def load(config: TrainConfig, data: DataSpec, device: torch.device) -> tuple[ImageSet, ImageSet]:
    """Training and test images of ``config.data_dir``. Raises ConfigurationError and DataError."""
    train, test = parts = [index(path) for path in folders(config.data_dir)]
    if train.classes != test.classes:
        odd = sorted({*train.classes} ^ {*test.classes})[0]
        raise ConfigurationError(
            f"data_dir: class {odd!r} is not in both {train.root} and {test.root}"
        )
    if config.in_memory:
        kept = [_decode_all(part, config, data, device) for part in parts]
        return kept[0], kept[1]
    return (
        FolderImages(train, config, data, device),
        FolderImages(test, config, data, device),
    )


class FolderImages:
    """Images that are decoded when they are needed, by ``config.data_workers`` processes."""

    def __init__(
        self,
        folder: ImageIndex,
        config: TrainConfig,
        data: DataSpec,
        device: torch.device,
    ) -> None:
        self._folder, self._config, self._data = folder, config, data
        self._prepare = Preparation(data, device, config.channels_last)
        self._device = device

    def __len__(self) -> int:
        return len(self._folder.samples)

    def batches(
        self, order: Tensor, batch_size: int, epoch: int | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """See :class:`ggs.train.image_set.ImageSet`."""
        augmented = epoch if self._config.augment else None
        loader = DataLoader(
            _Decoded(self._folder, self._data.image_size, self._config.seed, augmented),
            batch_size=batch_size,
            sampler=order.tolist(),
            num_workers=self._config.data_workers,
            pin_memory=self._device.type == "cuda",
            timeout=self._config.collective_timeout if self._config.data_workers else 0,
            worker_init_fn=partial(_begin, os.getpid()),
            generator=torch.Generator(),  # else it would draw from the one of the model's dropout
        )
        batches = iter(loader)
        while batch := _next(batches):
            yield self._prepare(batch[0]), batch[1].to(self._device, non_blocking=True)


def _begin(parent: int, number: int) -> None:
    """What a decoding process does first.

    One that hangs ignores the loader's SIGTERM, and would outlive the run. And one whose socket for
    images finds no room in the temporary folder's path would send none, and the run would hang.
    """
    die_with_parent(parent)
    if len(os.fsencode(tempfile.gettempdir())) + _SOCKET_NAME > _SOCKET_PATH:
        tempfile.tempdir = "/tmp"


class _UndecodableError(Exception):
    """A DataError's line on its way from the process that decodes: PyTorch puts a traceback around it,
    whose line breaks a DataError would not keep."""


class _Decoded(Dataset[tuple[Tensor, int]]):
    """uint8 images (3, size, size); augmented by a stream that belongs to epoch and image alone, so
    that neither the number of processes nor a restart changes a pixel."""

    def __init__(self, folder: ImageIndex, size: int, seed: int, epoch: int | None) -> None:
        self._folder, self._size, self._seed, self._epoch = folder, size, seed, epoch

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self._folder.samples[index]
        try:
            image = _open(path)
        except DataError as error:
            raise _UndecodableError(str(error)) from None
        if self._epoch is None:
            return functional.pil_to_tensor(_plain(image, self._size)), label
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self._seed, AUGMENTATION, self._epoch, index))
            return functional.pil_to_tensor(_augmented(image, self._size)), label


def _next(batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    """The next batch, or None. An image that another process could not decode is one line here, too."""
    try:
        return next(batches, None)
    except _UndecodableError as error:
        line = str(error).rstrip().splitlines()[-1]
        raise DataError(line.removeprefix(f"{__name__}.{_UndecodableError.__name__}: ")) from None


def _open(path: str | Path) -> Image.Image:
    """The image in 8-bit RGB, upright. Raises DataError, whatever its decoder makes of a damaged file."""
    try:
        with Image.open(path) as file:
            file.load()
            turn = _UPRIGHT.get(
                _orientation(file)
            )  # after loading: it turns some formats by itself
            image = _eight_bits(file)
            return image if turn is None else image.transpose(turn)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"data: cannot decode {path}: {one_line(error)}") from None


def _orientation(image: Image.Image) -> int:
    """As EXIF counts; 1, upright, where it says nothing that can be read."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # of a damaged header: the pixels are there all the same
        return 1


def _eight_bits(image: Image.Image) -> Image.Image:
    """``convert("RGB")`` alone would clip deeper grey images to white: 16 bits are scaled here."""
    sixteen = image.mode.startswith("I;16") or (
        image.mode == "I" and image.format in ("PNG", "PPM")
    )
    if sixteen:
        image = Image.fromarray(
            ((np.asarray(image).astype(np.int64) + 128) // 257).astype(np.uint8)
        )
    elif image.mode in ("I", "F"):
        raise DataError(
            f"data: {getattr(image, 'filename', 'an image')} has 32-bit pixels, whose black and white are "
            "not known; save it with 8 or 16 bits"
        )
    converted: Image.Image = image.convert("RGB")
    return converted


def _plain(image: Image.Image, size: int) -> Image.Image:
    if image.size == (size, size):
        return image
    if size <= SMALL_IMAGE:
        return image.resize((size, size), Image.Resampling.BILINEAR)
    short, long = sorted(image.size)
    if long > short * _LONGEST:  # scaled whole, a line of 30,000 pixels would take gigabytes
        width, height = (min(side, short * _LONGEST) for side in image.size)
        image = functional.center_crop(image, [height, width])
    resized: Any = functional.resize(image, [round(size * _MARGIN)])  # the shorter side
    cut: Any = functional.center_crop(resized, [size, size])
    return cut  # type: ignore[no-any-return]


def _augmented(image: Image.Image, size: int) -> Image.Image:
    """A crop of a small image after padding, a crop of random size of a large one; half of them
    mirrored."""
    if size <= SMALL_IMAGE:
        crop: Any = transforms.RandomCrop(size, padding=size // 8)
        image = _plain(image, size)
    else:
        crop = transforms.RandomResizedCrop(size)
    augmented: Image.Image = transforms.RandomHorizontalFlip()(crop(image))
    return augmented


def _decode_all(
    folder: ImageIndex, config: TrainConfig, data: DataSpec, device: torch.device
) -> TensorImages:
    size = data.image_size
    images = np.empty((len(folder.samples), 3, size, size), np.uint8)

    def decode(index: int) -> None:
        image = np.asarray(_plain(_open(folder.samples[index][0]), size))
        images[index] = image.transpose(2, 0, 1)

    with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
        for _ in pool.map(decode, range(len(folder.samples)), chunksize=64):
            pass
    labels = torch.tensor([label for _, label in folder.samples])
    return TensorImages(torch.from_numpy(images), labels, config, data, device)

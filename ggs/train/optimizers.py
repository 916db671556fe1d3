"""Optimizers by name, the schedule of their learning rate, and their exchange between workers."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from ggs.dist.process_group import Group
from ggs.errors import ConfigurationError
from ggs.optim.base import DistributedOptimizer
from ggs.optim.baselines import DeepGradientCompression, GradientSparsification, require_sgd
from ggs.optim.dense import Dense
from ggs.optim.error_feedback import ResidualOptimizer
from ggs.optim.ggs import GGS
from ggs.optim.support import check_optimizer
from ggs.text import one_line
from ggs.train.arguments import suggestion
from ggs.train.config import TrainConfig
from ggs.train.error_translation import is_out_of_memory
from ggs.train.names import require_optimizer

SPARSE: dict[str, type[ResidualOptimizer]] = {
    "ggs": GGS,
    "gs": GradientSparsification,
    "dgc": DeepGradientCompression,
}


def optimizer_classes() -> dict[str, Callable[..., torch.optim.Optimizer]]:
    """Every optimizer of torch.optim under its name in lower case."""
    classes: dict[str, Callable[..., torch.optim.Optimizer]] = {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)
    }
    classes.pop("optimizer")
    return classes


def build_optimizer(
    config: TrainConfig, parameters: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """The torch optimizer of ``config``. Raises ConfigurationError and UnsupportedError."""
    name, options = config.optimizer.lower(), dict(config.optimizer_options)
    if name == "amsgrad":
        name, options = "adam", {"amsgrad": True, **options}
    classes = optimizer_classes()
    require_optimizer(config.optimizer, classes)
    for setting in ("weight_decay", "momentum"):
        value = getattr(config, setting)
        if value is not None:
            if setting in options:
                raise ConfigurationError(
                    f"optimizer_options: {setting} is given as a setting of its own too"
                )
            options[setting] = value
    taken = list(inspect.signature(classes[name]).parameters)[1:]  # without params
    for option in options:
        if option not in taken or option == "lr":
            raise ConfigurationError(
                f"optimizer_options: {config.optimizer} takes no {option!r} here"
                f"{suggestion(option, taken)}; it takes {', '.join(o for o in taken if o != 'lr')}"
            )
    # torch writes some options as tuples, YAML and JSON know lists only.
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    parameters = list(parameters)
    with _refused_in_one_line(config, values):
        optimizer = classes[name](parameters, lr=config.lr, **values)
    check_optimizer(optimizer)
    if config.method == "dgc":
        if not isinstance(optimizer, torch.optim.SGD):
            raise ConfigurationError(
                f"method: dgc (Deep Gradient Compression) is made for momentum SGD and cannot use "
                f"{config.optimizer}; give --optimizer sgd --momentum 0.9, or --method ggs"
            )
        require_sgd(optimizer)
    device = _device_of_steps(config, parameters[0].device)
    if (
        device is not None
    ):  # some options are refused in the first step only, or in the one after it
        stand_in = nn.Parameter(torch.zeros(2, 2, device=device))
        stand_in.grad = torch.ones_like(stand_in)
        with _refused_in_one_line(config, values):
            trial = classes[name]([stand_in], lr=config.lr, **values)
            trial.step()
            trial.step()
    return optimizer


@contextmanager
def _refused_in_one_line(config: TrainConfig, values: dict[str, Any]) -> Iterator[None]:
    """Raise ConfigurationError for whatever an optimizer raises when it is given ``values``."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        texts = [option for option, value in values.items() if isinstance(value, str)]
        hint = f" ({texts[0]} is a text: write numbers without quotes)" if texts else ""
        raise ConfigurationError(
            f"optimizer: {config.optimizer} refuses {values}: {one_line(error)}{hint}"
        ) from None


def _device_of_steps(config: TrainConfig, device: torch.device) -> torch.device | None:
    """Where the optimizer will take its steps; None if that is a GPU of a worker yet to start."""
    if device.type != "meta":
        return device
    return torch.device("cpu") if config.device == "cpu" or not torch.cuda.device_count() else None


def distribute(
    config: TrainConfig,
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    warmup_steps: int,
    group: Group | None,
) -> DistributedOptimizer:
    """``optimizer`` with the exchange that ``config.method`` names; a collective."""
    if config.method == "dense":
        return Dense(
            optimizer,
            model,
            batchnorm=config.batchnorm,
            clip_norm=config.clip_norm,
            max_consecutive_skips=config.max_consecutive_skips,
            process_group=group,
        )
    own: dict[str, Any] = {"clip_norm": config.clip_norm} if config.method == "dgc" else {}
    if config.method == "ggs":
        own["every"] = config.every
        own["momentum_follows_density"] = config.momentum_follows_density
    return SPARSE[config.method](
        optimizer,
        model,
        config.density,
        budget=config.budget,
        warmup_steps=warmup_steps,
        scope=config.scope,
        values=config.values,
        exchange=config.exchange,
        workers_per_node=config.workers_per_node,
        batchnorm=config.batchnorm,
        dense_below=config.dense_below,
        max_consecutive_skips=config.max_consecutive_skips,
        process_group=group,
        **own,
    )


def local_clip_norm(config: TrainConfig) -> float | None:
    """What each worker's own gradient is limited to before the optimizer; None for no limit.

    Dense training and Deep Gradient Compression clip in their own steps.
    """
    return None if config.method in ("dense", "dgc") else config.clip_norm


def lr_factor(config: TrainConfig, step: int, total_steps: int, steps_per_epoch: int) -> float:
    """What the learning rate is multiplied with at ``step`` (0, 1, …) of ``total_steps``."""
    warmup = config.lr_warmup.steps(steps_per_epoch)
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, total_steps - warmup)
    if config.lr_schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, done)))
    if config.lr_schedule == "linear":
        return max(0.0, 1.0 - done)
    if config.lr_schedule == "step":
        return float(config.lr_gamma ** (step // max(1, config.lr_step.steps(steps_per_epoch))))
    return 1.0


def scheduler(
    config: TrainConfig, optimizer: torch.optim.Optimizer, total_steps: int, steps_per_epoch: int
) -> LambdaLR:
    """The learning-rate scheduler of ``config``, stepped once per optimizer step."""
    return LambdaLR(optimizer, lambda step: lr_factor(config, step, total_steps, steps_per_epoch))

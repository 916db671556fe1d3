"""One batch through a model that nobody has seen yet, before it trains: a mistake in it is one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ggs.errors import ConfigurationError
from ggs.train.checkpoint import rng
from ggs.train.config import TrainConfig
from ggs.train.evaluate import autocast
from ggs.train.models import training_loss
from ggs.train.seeds import MODEL, generator
from ggs.train.user_model import user_errors


def run_smoke_test(
    config: TrainConfig, model: nn.Module, images: tuple[int, int, int], num_classes: int
) -> None:
    """Pass one batch of noise forward and backward, and leave nothing behind.

    Buffers, gradients and random numbers are as before, so that no bit of the run depends on it.

    Args:
        config: the run.
        model: the model, on its device, in training mode.
        images: (channels, height, width) of what it will be fed.
        num_classes: how many scores it must give at least.

    Raises ConfigurationError for whatever goes wrong.
    """
    tensors = [*model.parameters(), *model.buffers()]
    if any(nn.parameter.is_lazy(tensor) for tensor in tensors):
        return  # refused when the optimizer is distributed, with the way out
    device = tensors[0].device if tensors else torch.device("cpu")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigurationError(
            f"model: {config.model} has no weight to train: all are frozen, or there is none"
        )
    _check_state(config.model, model)
    numbers = generator(config.seed, MODEL)
    batch = torch.randn(config.batch_size, *images, generator=numbers).to(device)
    if config.channels_last:
        batch = batch.to(memory_format=torch.channels_last)
    labels = (torch.arange(config.batch_size) % num_classes).to(device)
    with _undone(model, device):
        _try(config, model.eval(), batch, labels, num_classes)
        _try(config, model.train(), batch, labels, num_classes)


def _try(
    config: TrainConfig, model: nn.Module, images: Tensor, labels: Tensor, num_classes: int
) -> None:
    shape = "x".join(map(str, images.shape))
    kinds = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()} - {"float32"})
    hint = f"; its weights are {', '.join(kinds)}, images are float32" if kinds else ""
    with torch.set_grad_enabled(model.training):
        with (
            user_errors(f"model: {config.model} fails on images of {shape}", hint),
            autocast(config, images.device),
        ):
            output = model(images)
        _check_scores(config.model, output, len(images), num_classes)
        with user_errors(f"model: {config.model} fails in its loss or backward pass", hint):
            loss = training_loss(output, labels)
            if not model.training:
                return
            if not loss.requires_grad:
                raise ConfigurationError(
                    f"model: {config.model} returned scores that do not depend on a weight that is trained; "
                    "look for detach(), no_grad() or argmax()"
                )
            torch.autograd.backward(loss)


def _check_state(name: str, model: nn.Module) -> None:
    """Raise ConfigurationError for a model that could not be written at the end of its run."""
    with user_errors(f"model: {name} fails in state_dict()"):
        state = model.state_dict()
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise ConfigurationError(
                f"model: {key} in the state_dict() of {name} is a {type(value).__name__}; only tensors can "
                "be saved: register a buffer instead of get_extra_state()"
            )


def _check_scores(name: str, output: Any, batch: int, num_classes: int) -> None:
    """Raise ConfigurationError where a model's output is nothing to compute a loss from."""
    expected = f"it must return the classes' scores, (batch, {num_classes})"
    if isinstance(output, tuple):
        expected += ", or a tuple with them first and auxiliary ones behind"
    members = output if isinstance(output, tuple) and output else (output,)
    for position, scores in enumerate(members):
        if scores is None and position > 0:
            continue
        if not isinstance(scores, Tensor):
            raise ConfigurationError(
                f"model: {name} returned a {type(scores).__name__}; {expected}"
            )
        if scores.ndim != 2 or len(scores) != batch or scores.shape[1] < num_classes:
            raise ConfigurationError(
                f"model: {name} returned {tuple(scores.shape)} for {batch} images; {expected}"
            )
        if not scores.is_floating_point():
            raise ConfigurationError(f"model: {name} returned {scores.dtype} numbers; {expected}")


@contextmanager
def _undone(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Take back what a pass through ``model`` changes: buffers, gradients, attributes, random numbers."""
    values = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    # A compiled module's members are not Python's; it cannot gain or lose any either.
    modules = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
    tables = [
        (table, dict(table))
        for module in modules
        for table in (module._parameters, module._buffers, module._modules, module.__dict__)
    ]
    state = rng.get_state(device)
    try:
        yield
    finally:
        rng.set_state(state, device)
        for table, before in tables:
            table.clear()
            table.update(before)
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)
        for parameter in model.parameters():
            parameter.grad = None

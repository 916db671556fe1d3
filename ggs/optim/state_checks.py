"""What a loaded state must hold: checked before anything is changed."""

from typing import Any

import torch
from torch import Tensor

from ggs.errors import CheckpointError


def is_count(value: Any) -> bool:
    """Whether a state holds a number of steps here."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_list(value: Any, kind: type, length: int) -> bool:
    """Whether a state holds a list of so many of a kind here."""
    return isinstance(value, list) and [type(item) for item in value] == [kind] * length


def check_tensors(what: str, tensors: Any, expected: dict[str, tuple[int, ...]]) -> None:
    """Raise CheckpointError unless ``tensors``, of a state, has one of each name and shape expected."""
    if not isinstance(tensors, dict):
        raise CheckpointError(
            f"the state under 'ggs' has no {what} by parameter: load a state of the same model and class"
        )
    for name in sorted(tensors.keys() | expected.keys(), key=str):
        tensor = tensors.get(name)
        shape = None if tensor is None else _real_shape(tensor)
        if shape is None or shape != expected.get(name):
            raise CheckpointError(
                f"{what} of {name}: shape {shape} in the state, {expected.get(name)} in this model: load "
                "the state of the same model"
            )


def _real_shape(value: Any) -> tuple[int, ...] | str:
    """The shape of a plain tensor of real numbers; of anything else, what it is."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    plain = value.layout == torch.strided and not value.is_nested and value.device.type != "meta"
    return tuple(value.shape) if plain and value.is_floating_point() else f"{value.dtype} tensor"

"""A worker's state as a file: what ``state_dict()`` methods return, and nothing that runs when loaded.

``torch.save`` keeps tuples, infinities and the memory order of dense tensors (an optimizer's kernels may
round differently on another); ``torch.load(weights_only=True)`` makes nothing but tensors and plain values.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ggs.errors import CheckpointError
from ggs.text import one_line, shorten

Keys = tuple[object, ...]
Buffers = dict[Keys, Tensor]
"""Tensors in the CPU's memory by the keys that lead to them, such as ("optimizer", "state", 0, "exp_avg")."""


def to_cpu(state: Any, buffers: Buffers, path: Keys = ()) -> Any:
    """A copy of ``state`` in the CPU's memory, in ``buffers`` of an earlier call where they fit.

    Raises CheckpointError for an object that is neither a tensor nor plain, naming its path.
    """
    if state is None or isinstance(state, bool):
        return state
    if isinstance(state, str):
        return str(state)
    if isinstance(state, Tensor):
        return _copied(state.detach(), buffers, path)
    if isinstance(state, int):
        return int(state)
    if isinstance(state, float):  # also numpy's
        return float(state)
    if isinstance(state, list | tuple):
        items = [to_cpu(item, buffers, (*path, index)) for index, item in enumerate(state)]
        return items if isinstance(state, list) else tuple(items)
    if isinstance(state, Mapping):
        return {
            to_cpu(key, buffers, path): to_cpu(item, buffers, (*path, key))
            for key, item in state.items()
        }
    name = "/".join(map(str, path))
    raise CheckpointError(f"{name} is a {type(state).__name__}, which cannot be saved")


def _copied(tensor: Tensor, buffers: Buffers, path: Keys) -> Tensor:
    kept = buffers.get(path)
    empty = torch.empty_like(tensor, device="meta")  # in the memory order of a dense tensor
    if (
        kept is None
        or (kept.shape, kept.dtype) != (empty.shape, empty.dtype)
        or kept.stride() != empty.stride()
    ):
        kept = torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type == "cuda")
        buffers[path] = kept
    return kept.copy_(tensor)


def write(path: Path, state: Any) -> None:
    """Write what ``to_cpu`` gave. Raises OSError."""
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:  # torch's archive cannot end where a full disk has ended it
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise OSError(0, one_line(error, 200)) from None


def read(path: Path) -> dict[str, Any]:
    """The state in a file that ``write`` wrote. Raises CheckpointError for whatever else lies there."""
    try:
        with zipfile.ZipFile(path) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise CheckpointError("it is compressed")
        # Mapped, so that no tensor can claim memory beyond the file; copied, since the storage may vanish.
        mapped = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if not isinstance(mapped, dict):
            raise CheckpointError(f"it holds a {type(mapped).__name__} instead of a state")
        return {key: _owned(item) for key, item in mapped.items()}
    except Exception as error:  # pickle's are of every kind
        if isinstance(error, OSError) and error.strerror:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
        reason = one_line(error, 200)
        raise CheckpointError(f"cannot read {path}: the state is not readable: {reason}") from None


def _owned(value: Any) -> Any:
    """``value`` without the file below it. Raises CheckpointError for what ``to_cpu`` does not give."""
    if type(value) is Tensor:
        if value.layout != torch.strided or value.nbytes > value.untyped_storage().nbytes():
            raise CheckpointError(f"a tensor of {tuple(value.shape)} is larger than its memory")
        return value.clone()
    if type(value) in (list, tuple):
        return type(value)(_owned(item) for item in value)
    if type(value) is dict:
        return {key: _owned(item) for key, item in value.items()}
    if value is None or type(value) in (bool, str, int, float):
        return value
    raise CheckpointError(f"{shorten(repr(type(value)), 80)} does not belong in a state")

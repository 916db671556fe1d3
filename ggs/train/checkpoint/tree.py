"""Nested states as tensors plus JSON: what safetensors can hold, and nothing that runs when loaded.

``flatten`` takes what ``state_dict()`` methods return (dicts, lists, tuples, numbers, texts, tensors) apart
into a JSON text and named tensors; ``unflatten`` puts it together again, bit for bit, memory order of
dense tensors included (an optimizer's kernels may round differently on another).
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ggs.errors import CheckpointError

_TENSOR, _TUPLE, _ITEMS, _FLOAT = "$tensor", "$tuple", "$items", "$float"
_TAGS = (_TENSOR, _TUPLE, _ITEMS, _FLOAT)


def flatten(state: Any) -> tuple[str, dict[str, Tensor]]:
    """``state`` as a JSON text and its tensors by name; the tensors are contiguous views where possible.

    Raises CheckpointError for an object of another kind, naming its place.
    """
    tensors: dict[str, Tensor] = {}
    return json.dumps(_encode(state, "", tensors), allow_nan=False), tensors


def unflatten(text: str, tensors: Mapping[str, Tensor]) -> Any:
    """What ``flatten`` was given. Raises CheckpointError for any text that ``flatten`` does not write."""
    try:
        return _decode(json.loads(text, parse_constant=_refuse), tensors)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"the state is not readable: {str(error)[:200]}") from None


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Tensor):
        return _encode_tensor(value.detach(), path, tensors)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT: repr(float(value))}
    if isinstance(value, (list, tuple)):
        items = [_encode(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {_TUPLE: items}
    if isinstance(value, Mapping):
        pairs = [(key, _encode(item, f"{path}/{key}", tensors)) for key, item in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs):
            return dict(pairs)
        return {_ITEMS: [[_encode(key, path, tensors), item] for key, item in pairs]}
    raise CheckpointError(f"{path.lstrip('/')} is a {type(value).__name__}, which cannot be saved")


def _encode_tensor(value: Tensor, path: str, tensors: dict[str, Tensor]) -> Any:
    name = path.lstrip("/")
    while name in tensors:  # {"a/b": x, "a": {"b": y}}
        name += "'"
    strides = value.stride()
    order = sorted(range(value.dim()), key=lambda dimension: (-strides[dimension], dimension))
    permuted = value.permute(order)
    if value.is_contiguous() or not permuted.is_contiguous():
        tensors[name] = value.contiguous()
        return {_TENSOR: [name]}
    tensors[name] = permuted
    return {_TENSOR: [name, *order]}


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    tag = next((key for key in value if key.startswith("$")), None)
    if tag is None:
        return {key: _decode(item, tensors) for key, item in value.items()}
    content = value[tag]
    if len(value) != 1 or tag not in _TAGS or not isinstance(content, (str, list)):
        raise ValueError(f"{tag} is not where it may be")
    if tag == _FLOAT:
        if content not in ("inf", "-inf", "nan"):
            raise ValueError(f"{str(content)[:40]!r} is no number")
        return float(content)
    if isinstance(content, str):
        raise ValueError(f"{tag} holds a text")  # noqa: TRY004  callers expect ValueError only
    if tag == _TENSOR:
        return _decode_tensor(content, tensors)
    if tag == _TUPLE:
        return tuple(_decode(item, tensors) for item in content)
    return _decode_items(content, tensors)


def _decode_items(content: list[Any], tensors: Mapping[str, Tensor]) -> dict[Any, Any]:
    items = {}
    for pair in content:
        if not isinstance(pair, list) or len(pair) != 2 or isinstance(pair[0], (list, dict)):
            raise ValueError("an entry is no pair of a plain key and a value")
        items[pair[0]] = _decode(pair[1], tensors)
    return items


def _decode_tensor(content: list[Any], tensors: Mapping[str, Tensor]) -> Tensor:
    name, order = content[0] if content else None, content[1:]
    if not isinstance(name, str) or name not in tensors:
        raise ValueError(f"tensor {str(name)[:80]!r} is missing")
    stored = tensors[name]
    if not order:
        return stored
    if any(type(place) is not int for place in order) or sorted(order) != list(range(stored.dim())):
        raise ValueError(f"tensor {name[:80]!r} has an impossible memory order")
    return stored.permute([order.index(place) for place in range(stored.dim())])


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def to_cpu(
    tensors: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Copies of ``tensors`` in the CPU's memory, in ``buffers`` of an earlier call where they fit."""
    copies = {}
    for name, tensor in tensors.items():
        kept = (buffers or {}).get(name)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = torch.empty(
                tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda"
            )
        copies[name] = kept.copy_(tensor)
    return copies

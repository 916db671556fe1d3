"""Do all workers run the same job? Compared once, at construction, before anything can hang.

Each worker describes itself as a JSON document. Only its digest travels as long as all are equal; if
they are not, every rank learns who differs in what, and raises.
"""

import hashlib
import json
import re
from typing import Any

import torch

from ggs.dist.collectives import Collectives
from ggs.errors import MismatchError
from ggs.text import shorten

_TEXT_BYTES = 512


def require_agreement(
    collectives: Collectives, description: dict[str, Any], device: torch.device
) -> None:
    """Compare ``description`` with every other worker's; what JSON cannot hold counts as its text.

    Raises MismatchError, on every rank, naming the first rank that differs from rank 0 and what
    differs.
    """
    if collectives.size == 1:
        return
    document = json.dumps(description, sort_keys=True, default=_plain).encode()
    digests = collectives.all_gather(_to_tensor(hashlib.sha256(document).digest(), device))
    if bool((digests == digests[0]).all()):
        return
    size = torch.tensor([len(document)], dtype=torch.int64, device=device)
    collectives.broadcast_(size)
    content = _to_tensor(document[: int(size)].ljust(int(size), b" "), device)
    collectives.broadcast_(content)
    reference = json.loads(bytes(content.cpu().tolist()))
    difference = _first_difference(reference, json.loads(document))
    text = difference.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b" ")
    texts = collectives.all_gather(_to_tensor(text, device)).cpu()
    for rank, row in enumerate(texts):
        difference = bytes(row.tolist()).decode(errors="replace").strip()
        if difference:
            raise MismatchError(
                f"rank {rank} differs from rank 0 in {difference}: start every worker with the same "
                "model, optimizer and GGS settings"
            )
    raise AssertionError("digests differ but documents do not")


def _to_tensor(data: bytes, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def _plain(value: Any) -> Any:
    """A tensor as its numbers, anything else as a text without what differs between processes."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _first_difference(reference: Any, here: Any, path: str = "") -> str:
    """The first place where two JSON documents differ, as 'path: A there, B here'; '' if none."""
    if isinstance(reference, dict) and isinstance(here, dict):
        for key in sorted(reference.keys() | here.keys()):
            inner = f"{path} {key}".strip()
            if key not in reference:
                return f"{inner}: absent on rank 0, {_short(here[key])} here"
            if key not in here:
                return f"{inner}: {_short(reference[key])} on rank 0, absent here"
            if difference := _first_difference(reference[key], here[key], inner):
                return difference
        return ""
    if reference != here:
        return f"{path}: {_short(reference)} on rank 0, {_short(here)} here"
    return ""


def _short(value: Any) -> str:
    return shorten(json.dumps(value), 80)

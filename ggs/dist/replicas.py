"""Replicas start as copies of rank 0's; are their weights still bit-identical? A cheap comparison by hash.

Every parameter's bits are read as 32-bit integers b_i and hashed to Σ b_i·m_i mod 2^64 with fixed random
odd multipliers m_i. Integer sums do not depend on their order, so the hash is the same on every kind of
device; one parameter that differs keeps its hash with a probability of about 2^-32 (a universal hash, not
one that withstands an adversary).
"""

from collections.abc import Iterable, Sequence
from functools import cache

import torch
from torch import Tensor

from ggs.dist.collectives import Collectives
from ggs.errors import DivergenceError

_BLOCK = 1 << 18
"""Elements that are hashed at once: their 64-bit copies stay in the cache."""


@torch.no_grad()
def copy_from_rank_0(tensors: Sequence[Tensor], collectives: Collectives) -> None:
    """Overwrite a model's ``tensors`` with rank 0's; a collective."""
    if collectives.size > 1:
        _leave_shared_memory(tensors)
    for tensor in tensors:
        collectives.broadcast_(tensor)


def _leave_shared_memory(tensors: Iterable[Tensor]) -> None:
    """Give this process memory of its own for ``tensors``: what ``mp.spawn`` hands over, all write into.

    Those that are views of one memory remain so.
    """
    own: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        if tensor.device.type != "cpu" or not tensor.untyped_storage().is_shared():
            continue
        if tensor.is_conj() or tensor.is_neg():
            tensor.data = tensor.clone()
            continue
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            own[storage.data_ptr()] = storage.clone()  # type: ignore[no-untyped-call]
        tensor.data = torch.empty(0, dtype=tensor.dtype).set_(
            own[storage.data_ptr()], tensor.storage_offset(), tensor.size(), tensor.stride()
        )


def check_replicas(
    named: Sequence[tuple[str, Tensor]], collectives: Collectives, step: int
) -> None:
    """Compare tensors that must be the same bits on all workers; a collective.

    Args:
        named: (name, tensor) pairs, the same names in the same order on every worker.
        collectives: the workers.
        step: for the message.

    Raises DivergenceError on every worker, naming the ranks that differ from most others.
    """
    if collectives.size == 1 or not named:
        return
    hashes = torch.stack([tensor_hash(tensor) for _, tensor in named])
    rows = collectives.all_gather(hashes.view(torch.uint8)).cpu()
    words = rows.contiguous().view(torch.int64)  # (ranks, tensors)
    if bool((words == words[0]).all()):
        return
    column = int((words != words[0]).any(0).nonzero()[0])
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, row in enumerate(words.tolist()):
        groups.setdefault(tuple(row), []).append(rank)
    majority = max(groups.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    odd = [rank for rank in range(collectives.size) if rank not in majority]
    raise DivergenceError(
        f"the workers' weights differ at step {step}: rank{'s' if len(odd) > 1 else ''} "
        f"{', '.join(map(str, odd))} from rank{'s' if len(majority) > 1 else ''} "
        f"{', '.join(map(str, majority))}, first in {named[column][0]}; a resumed run goes on from a "
        "checkpoint where they were equal. If it happens again, test the memory of these machines"
    )


def tensor_hash(tensor: Tensor) -> Tensor:
    """The () int64 hash of a tensor's bits, on its device; memory order does not matter."""
    flat = tensor.detach().contiguous().view(-1)
    if flat.element_size() < 4:  # half precision: the value says the same as the bits
        flat = flat.view(torch.int16 if flat.element_size() == 2 else torch.uint8)
    else:
        flat = flat.view(torch.int32)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for block in torch.split(flat, _BLOCK):
        total = total * 6364136223846793005 + _dot(block)
    return total


def _dot(block: Tensor) -> Tensor:
    return (block.long() * _multipliers(block.device)[: len(block)]).sum()


@cache
def _multipliers(device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0x675)
    low, high = -(2**63), 2**63 - 1
    numbers = torch.randint(low, high, (_BLOCK,), dtype=torch.int64, generator=generator)
    return (numbers | 1).to(device)

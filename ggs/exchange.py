"""How the workers' selected elements reach each other.

Every exchange takes one worker's selection and yields all workers' contributions in rank order, the
same bits on every rank, so that replicas that add them in that order stay bit-identical.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ggs.collectives import Collectives
from ggs.wire import decode, encode


@dataclass(frozen=True)
class Contribution:
    """One worker's part of a step's update.

    ``dense`` (m,) holds the elements that always travel; ``indices`` (k,) int64 ascending, or None for
    all, and ``values`` (k,) the selected ones of the others.
    """

    dense: Tensor
    indices: Tensor | None
    values: Tensor


class AllGather:
    """Every worker sends its whole selection to every other: (N-1)·k elements a worker and step.

    Args:
        collectives: the process group.
        numel: size of the sparse index space.
        values_format: how values are coded, see ``ggs.wire``.
    """

    def __init__(self, collectives: Collectives, numel: int, values_format: str) -> None:
        self._collectives = collectives
        self._numel = numel
        self._format = values_format

    def __call__(
        self, indices: Tensor, values: Tensor, dense: Tensor
    ) -> tuple[Tensor, Iterator[Contribution]]:
        """Exchange one step's selection; a collective.

        Returns (sent, contributions): the (k,) values that the others really get of ours (what is
        missing from ``values`` is the quantisation error, the caller's to keep) and every worker's
        contribution in rank order.
        """
        count = len(values)
        message, sent = encode(indices, values, self._numel, self._format)
        if self._collectives.size == 1:
            everything = None if count == self._numel else indices
            return sent, iter([Contribution(dense, everything, sent)])
        head = dense.view(torch.uint8)
        gathered = self._collectives.all_gather(torch.cat([head, message]))
        return sent, (self._decode(row, len(head), count, dense.dtype) for row in gathered)

    def _decode(self, row: Tensor, head: int, count: int, dtype: torch.dtype) -> Contribution:
        dense = row[:head].clone().view(dtype)
        indices, values = decode(row[head:], self._numel, count, self._format)
        return Contribution(dense, None if count == self._numel else indices, values)

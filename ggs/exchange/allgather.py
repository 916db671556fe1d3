"""Every worker sends its whole selection to every other: (N-1)·k elements a worker and step."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ggs.dist.collectives import Collectives, Gathering
from ggs.exchange.base import Exchange, ExchangeTask, Update
from ggs.select import Selector
from ggs.wire import decode, encode, message_size

PIECE_BYTES = 1 << 20
"""A message larger than this is sent in pieces, so that coding one overlaps sending another."""
GATHERED_BYTES = 64 << 20
"""Memory for the pieces that one collective gathers from all workers, whatever their number."""


def pieces(numel: int, count: int, size: int, values_format: str) -> int:
    """In how many pieces ``size`` workers send ``count`` of ``numel`` elements each."""
    length = message_size(numel, count, values_format)
    return max(1, min(count, max(length // PIECE_BYTES, -(-length * size // GATHERED_BYTES))))


def piece_numel(numel: int, count: int, length: int) -> int:
    """Size of the index space of a piece with ``length`` of the ``count`` selected elements."""
    return length if count == numel else numel


def cuts(numel: int, count: int, size: int, values_format: str) -> list[int]:
    """Where the selected elements are cut into pieces: from 0 to ``count``."""
    number = pieces(numel, count, size, values_format)
    return [count * piece // number for piece in range(number + 1)]


class AllGather(Exchange):
    """All-gather of the selections, in pieces of so many elements each, added rank by rank.

    Of a piece's indices only their number is known beforehand, so each piece is coded as a message over
    the whole index space: P pieces cost log2 P bits more an element than one.
    """

    def __init__(self, collectives: Collectives, task: ExchangeTask) -> None:
        super().__init__(collectives, task)
        self._selector = Selector(task.numel)

    def run(self, counts: Sequence[int], step: int) -> Iterator[Update]:
        """See ``Exchange.run``."""
        task = self.task
        indices, values = self._selector.select_segments_(task.residual, task.offsets, counts)
        task.on_selected(indices, values)
        self.selected = count = len(values)
        if self.collectives.size == 1:
            _, sent = encode(indices, values, task.numel, task.values_format)
            self.keep_rest_(task.residual, indices, values, sent)
            yield Update(None if count == task.numel else indices, sent)
            return
        # Send each piece before the one ahead of it is received and added.
        under_way = None
        for start, stop in pairwise(
            cuts(task.numel, count, self.collectives.size, task.values_format)
        ):
            following = self._send(indices[start:stop], values[start:stop], count)
            if under_way is not None:
                yield from self._receive(*under_way)
            under_way = following, start, stop - start, count
        if under_way is not None:
            yield from self._receive(*under_way)

    def _send(self, indices: Tensor, values: Tensor, count: int) -> Gathering:
        task, length = self.task, len(values)
        numel = piece_numel(task.numel, count, length)
        inside = torch.arange(length, device=indices.device) if numel == length else indices
        message, sent = encode(inside, values, numel, task.values_format)
        gathering = self.collectives.start_all_gather(message)
        self.keep_rest_(task.residual, indices, values, sent)
        return gathering

    def _receive(
        self, gathering: Gathering, start: int, length: int, count: int
    ) -> Iterator[Update]:
        whole = count == self.task.numel
        numel = piece_numel(self.task.numel, count, length)
        for row in gathering.wait():
            indices, values = decode(row, numel, length, self.task.values_format)
            if whole and length == count:
                yield Update(None, values)
            else:
                yield Update(indices + start if whole else indices, values)

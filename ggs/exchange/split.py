"""By index range: each worker owns one range, sums what all send for it, and selects again.

Sends about 3·k elements a worker and step however many workers there are. The scheme is Ok-Topk's
(S. Li, T. Hoefler, "Near-optimal sparse allreduce for distributed deep learning", PPoPP 2022), which
thresholds where we select exactly, so that every message has a size known beforehand:

1. a worker selects from each range the number of elements that is the range's share, and sends them
   to the owner (of its own range, nothing);
2. the owner adds what it receives to *its own residual*, in rank order, and selects from there;
3. what it selected goes to all workers. What it did not is in its residual already, so nothing is
   lost and there is no bookkeeping: the sum of all residuals is what the weights still lack.

So that the ranges' shares are the global selection, the ranges are moved until each holds the same
part of what the workers would select from the whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch

from ggs.dist.collectives import Collectives
from ggs.exchange.base import Exchange, ExchangeTask, Update, cut
from ggs.select import Selector
from ggs.wire import decode, encode, message_size

BUDGET = 3.0
"""Bytes that a worker may send in a step, as a multiple of its whole selection as one message."""
BALANCE_STEPS = 64
"""Steps between two moves of the ranges; before that, at the powers of two."""


@dataclass(frozen=True)
class Ranges:
    """Who owns what, and how many elements of it travel.

    Attributes:
        bounds: N + 1 indices; rank j owns [bounds[j], bounds[j + 1]).
        offsets: for each rank, the borders of the segments of its range, from its start.
        first: for each rank, how many elements of each segment every other worker sends it.
        second: for each rank, how many of each segment it sends to all.
    """

    bounds: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]
    first: tuple[tuple[int, ...], ...]
    second: tuple[tuple[int, ...], ...]

    def numel(self, rank: int) -> int:
        """Size of a rank's range."""
        return self.bounds[rank + 1] - self.bounds[rank]


@lru_cache(maxsize=64)
def ranges_of(
    offsets: tuple[int, ...],
    counts: tuple[int, ...],
    size: int,
    values_format: str,
    balanced: tuple[int, ...] | None,
) -> Ranges:
    """The ranges of ``size`` workers.

    Args:
        offsets, counts: the segments, and how many elements are selected from each.
        balanced: bounds to use where they leave room enough; None for ranges of equal size.
    """
    numel, count = offsets[-1], sum(counts)
    room = 4 * -(-count // size)
    if balanced is not None and all(b - a >= room for a, b in pairwise(balanced)):
        # Moved so that each holds the same part of the selection: of one segment, the whole model.
        shares = [count * rank // size for rank in range(size + 1)]
        first = tuple((b - a,) for a, b in pairwise(shares))
        inner = tuple((0, b - a) for a, b in pairwise(balanced))
        return _with_second(balanced, inner, first, values_format, count)
    bounds = tuple(numel * rank // size for rank in range(size + 1))
    inner, first = zip(*(cut(offsets, counts, a, b) for a, b in pairwise(bounds)), strict=True)
    return _with_second(bounds, inner, first, values_format, count)


def _with_second(
    bounds: tuple[int, ...],
    offsets: tuple[tuple[int, ...], ...],
    first: tuple[tuple[int, ...], ...],
    values_format: str,
    count: int,
) -> Ranges:
    """Let the owners send what the budget leaves: from half to N times what each worker sent them."""
    size = len(first)

    def scaled(factor: float) -> Ranges:
        second = tuple(
            tuple(
                min(b - a, int(part * factor + 0.5))
                for (a, b), part in zip(pairwise(borders), parts, strict=True)
            )
            for borders, parts in zip(offsets, first, strict=True)
        )
        return Ranges(bounds, offsets, first, second)

    # What the first round leaves of the budget is the second's: find the largest factor that fits.
    whole = message_size(bounds[-1], count, values_format)
    budget = BUDGET * whole - largest_first_bytes(scaled(0.0), values_format)

    def fits(factor: float) -> bool:
        return (size - 1) * second_size(scaled(factor), values_format) <= budget

    low, high = 0.5, float(size)
    if fits(high):
        return scaled(high)
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return scaled(low)


def first_sizes(ranges: Ranges, values_format: str) -> list[int]:
    """Bytes of the message to each rank."""
    return [
        message_size(ranges.numel(rank), sum(parts), values_format)
        for rank, parts in enumerate(ranges.first)
    ]


def largest_first_bytes(ranges: Ranges, values_format: str) -> int:
    """What the worker that sends most sends to the owners: it owns the range of the shortest message."""
    sizes = first_sizes(ranges, values_format)
    return sum(sizes) - min(sizes)


def second_size(ranges: Ranges, values_format: str) -> int:
    """Bytes of the message to all: the longest of any owner, since all must be equally long."""
    # All of them: a message of a larger range, or of more elements, may be the shorter one.
    messages = {(ranges.numel(rank), sum(parts)) for rank, parts in enumerate(ranges.second)}
    return max(message_size(numel, count, values_format) for numel, count in messages)


def _fit(bounds: object, size: int, numel: int) -> bool:
    """Whether these are borders of ``size`` ranges that cover ``numel`` elements."""
    return (
        isinstance(bounds, list | tuple)
        and len(bounds) == size + 1
        and all(type(border) is int for border in bounds)
        and bounds[0] == 0
        and bounds[-1] == numel
        and list(bounds) == sorted(bounds)
    )


class Split(Exchange):
    """Reduce-scatter and all-gather of selections, by index range."""

    def __init__(self, collectives: Collectives, task: ExchangeTask) -> None:
        super().__init__(collectives, task)
        self.state = {"bounds": None}
        self._loaded = False
        self._bounds: tuple[int, ...] | None = None
        self._whole = Selector(task.numel)

    def load(self, state: dict[str, Any]) -> None:
        """See ``Exchange.load``. What does not fit here is noticed in the next step, by all together."""
        self.state["bounds"] = state.get("bounds")
        self._loaded = True

    def run(self, counts: Sequence[int], step: int) -> Iterator[Update]:
        """See ``Exchange.run``."""
        # Who owns which range in this step?
        if len(counts) == 1:
            if self._loaded:
                self._agree_on_loaded()
            self._balance(counts[0], step)
        else:  # what each tensor sends is given, so there is nothing to balance
            self.state["bounds"] = None
        self._loaded = False
        bounds = self.state["bounds"]
        ranges = ranges_of(
            self.task.offsets,
            tuple(counts),
            self.collectives.size,
            self.task.values_format,
            None if bounds is None else tuple(bounds),
        )
        if ranges.bounds != self._bounds:  # what the selectors remember is of other segments
            self._bounds = ranges.bounds
            self._first = Selector(self.task.numel)
            self._second = Selector(ranges.numel(self.collectives.rank))
        self._to_owners(ranges)
        yield from self._to_all(ranges)

    def _agree_on_loaded(self) -> None:
        """Forget bounds that were loaded unless they fit here and are the same on all workers.

        They may come from other workers, another device (which fills up its tensors to another size) or
        another hand. To refuse them would be needless: without them the ranges are measured anew from the
        residuals, which hold all that has not arrived, and the first step is balanced as any other.
        """
        size, residual = self.collectives.size, self.task.residual
        bounds = self.state["bounds"]
        row = bounds if _fit(bounds, size, len(residual)) else [-1] * (size + 1)
        borders = torch.tensor(row, dtype=torch.int64, device=residual.device)
        most, least = self.collectives.all_reduce_max_(torch.stack([borders, -borders]))
        if bool((most != -least).any()) or int(most[0]) < 0:
            self.state["bounds"] = None

    def _balance(self, count: int, step: int) -> None:
        """Move the ranges so that each holds the same part of the mean worker's selection."""
        size, residual = self.collectives.size, self.task.residual
        bounds = self.state["bounds"]
        if bounds is not None and step % BALANCE_STEPS and step & (step - 1):
            return
        self.state["bounds"] = None
        if count < size or count * 8 > len(
            residual
        ):  # too few to cut, or so many that all are alike
            return
        # Select from the whole only to look where the selection lies, and put it back.
        indices, values = self._whole.select_(residual, count)
        residual[indices] = values
        # The indices that cut this worker's selection into equal parts; their mean over the workers.
        positions = torch.tensor([count * rank // size for rank in range(1, size)])
        cuts = indices[positions.to(indices.device)]
        mean = self.collectives.all_reduce_sum_(cuts) // size
        self.state["bounds"] = [0, *mean.tolist(), len(residual)]

    def _to_owners(self, ranges: Ranges) -> None:
        """Every worker's selection from each range arrives in the residual of the range's owner."""
        task, rank, size = self.task, self.collectives.rank, self.collectives.size
        # Select from every segment of every range but this worker's own.
        borders = [0]
        for start, inner in zip(ranges.bounds, ranges.offsets, strict=False):
            borders += [start + border for border in inner[1:]]
        counts = [
            0 if owner == rank else part for owner in range(size) for part in ranges.first[owner]
        ]
        indices, values = self._first.select_segments_(task.residual, borders, counts)
        task.on_selected(indices, values)
        self.selected = len(values)
        # Code one message for each other owner, side by side. What coding takes away stays here.
        sizes = first_sizes(ranges, task.values_format)
        incoming = [0 if source == rank else sizes[rank] for source in range(size)]
        sizes[rank] = 0
        messages = torch.empty(sum(sizes), dtype=torch.uint8, device=values.device)
        at = start = 0
        for owner, length in enumerate(sizes):
            if owner == rank:
                continue
            stop = start + sum(ranges.first[owner])
            selected, part = indices[start:stop], values[start:stop]
            _, sent = encode(
                selected - ranges.bounds[owner],
                part,
                ranges.numel(owner),
                task.values_format,
                out=messages[at : at + length],
            )
            task.residual[selected] = part - sent
            at, start = at + length, stop
        # Send them, and add what arrives for this worker's range, in the order of the ranks.
        received = self.collectives.all_to_all(messages, sizes, incoming)
        owned = task.residual[ranges.bounds[rank] : ranges.bounds[rank + 1]]
        for row in received.view(size - 1, -1):
            positions, arrived = decode(
                row, ranges.numel(rank), sum(ranges.first[rank]), task.values_format
            )
            owned.index_add_(0, positions, arrived.to(owned.dtype))

    def _to_all(self, ranges: Ranges) -> Iterator[Update]:
        """The owners' selections arrive at every worker."""
        task, rank = self.task, self.collectives.rank
        # Select from the range that this worker owns, where all that was sent to it has been added.
        start, numel = ranges.bounds[rank], ranges.numel(rank)
        owned = task.residual[start : start + numel]
        indices, values = self._second.select_segments_(
            owned, ranges.offsets[rank], ranges.second[rank]
        )
        task.on_selected(indices + start, values)
        self.selected += len(values)
        # Messages of all owners are equally long, filled up with zeros.
        message = values.new_zeros(second_size(ranges, task.values_format), dtype=torch.uint8)
        length = message_size(numel, len(values), task.values_format)
        _, sent = encode(indices, values, numel, task.values_format, out=message[:length])
        self.keep_rest_(owned, indices, values, sent)
        for owner, row in enumerate(self.collectives.all_gather(message)):
            count = sum(ranges.second[owner])
            length = message_size(ranges.numel(owner), count, task.values_format)
            positions, part = decode(row[:length], ranges.numel(owner), count, task.values_format)
            yield Update(positions + ranges.bounds[owner], part)

"""What all exchanges have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor

from ggs.dist.collectives import Collectives
from ggs.wire.layout import FORMATS


class Update(NamedTuple):
    """Part of a step's update: ``indices`` (k,) int64 ascending, or None for all, and ``values`` (k,)."""

    indices: Tensor | None
    values: Tensor


@dataclass(frozen=True)
class ExchangeTask:
    """What is exchanged: the sparse part of one worker's residual.

    Attributes:
        residual: (n,) contiguous. What is sent leaves it.
        offsets: borders of the segments from which the same share is selected: (0, n) for the whole
            model, those of the tensors for selection per tensor.
        values_format: how values are coded, see ``ggs.wire``.
        on_selected: called with every (indices, values) selected, before they are sent; indices count from
            the start of ``residual``. Raises if they must not be sent.
    """

    residual: Tensor
    offsets: tuple[int, ...]
    values_format: str
    on_selected: Callable[[Tensor, Tensor], None]

    @property
    def numel(self) -> int:
        """n, the size of the index space."""
        return len(self.residual)


class Exchange(ABC):
    """One way in which the workers' selected elements reach each other.

    Attributes:
        sources: over how many residuals the mean is taken: one per worker, or per node where the
            workers of a node share theirs.
        node: the workers of this node, whose gradients must be averaged first; None for no averaging.
        selected: elements that this worker sent in the last step.
        weight: how often the residual counts in the mean over all workers that the weights still lack.
        state: what a resumed run needs beside the residual to go on bit for bit; for a checkpoint.
    """

    def __init__(self, collectives: Collectives, task: ExchangeTask) -> None:
        self.collectives = collectives
        self.task = task
        self.sources = collectives.size
        self.node: Collectives | None = None
        self.weight = 1
        self.selected = 0
        self.state: dict[str, Any] = {}

    def keep_rest_(self, residual: Tensor, indices: Tensor, values: Tensor, sent: Tensor) -> None:
        """Put back what coding took from ``values`` (k,), where selection left zeros."""
        if FORMATS[self.task.values_format].bits < 8 * residual.element_size():
            residual[indices] = values - sent  # else the format is exact

    def forget_others(self) -> None:  # noqa: B027  # most exchanges share nothing
        """Clear what of the residual is another worker's to send, where the workers of a node share it."""

    def load(self, state: dict[str, Any]) -> None:
        """Take back what ``state`` was, or any other's; every worker does, before the same step."""
        self.state.update(state)

    @abstractmethod
    def run(self, counts: Sequence[int], step: int) -> Iterator[Update]:
        """Select, exchange, and take what was sent out of the residual; a collective.

        Args:
            counts: how many elements to select from each of the task's segments.
            step: 0, 1, ...; some exchanges rearrange themselves now and then.

        Yields updates, on every rank the same bits in the same order; their sum over ``sources`` is
        what to add to the weights. The exchange is over when all are consumed.
        """


def cut(
    offsets: tuple[int, ...], counts: Sequence[int], start: int, stop: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The parts of the segments in [start, stop), from its start, with their parts of the counts."""
    borders, parts = [0], []
    for (a, b), count in zip(pairwise(offsets), counts, strict=True):
        low, high = max(a, start), min(b, stop)
        if low < high:
            borders.append(high - start)
            parts.append(count * (high - a) // (b - a) - count * (low - a) // (b - a))
    return (tuple(borders), tuple(parts)) if parts else ((0, 0), (0,))

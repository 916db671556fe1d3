"""The few collectives that GGS uses, with every byte counted: an interface for workers in processes
(``ggs.dist.process_group``) and in the threads of one (``ggs.dist.lockstep``).
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ggs.dist.clock import Clock, Phase
from ggs.errors import UnsupportedError


def stated_by_launcher(name: str) -> int | None:
    """The whole number that a launcher has put into the environment as ``name``; None if none above 0."""
    try:
        number = int(os.environ.get(name, ""))
    except ValueError:  # also one of more digits than Python reads
        return None
    return number if number > 0 else None


class Gathering:
    """An all-gather on its way; ``wait`` gives its result."""

    def __init__(self, arrived: Callable[[], Tensor], clock: Clock) -> None:
        self._arrived, self._clock = arrived, clock

    def wait(self) -> Tensor:
        """(N, m): row i from rank i."""
        with self._clock.phase("sending"):
            return self._arrived()


class Collectives(ABC):
    """Collectives over ``size`` workers, of which this one has ``rank``. One that is alone sends nothing.

    ``bytes_sent`` and ``bytes_received`` count what this worker exchanges under the usual ring
    algorithms, which is also the least that any algorithm needs: (N-1)·m for gathering m bytes from
    each of N workers, 2·(N-1)/N·m for an all-reduce of m bytes.

    Args:
        counted_by: collectives over a larger group, which count this group's bytes as well, and whose
            clock this group's collectives run on.
    """

    shares_process = False
    """Whether the workers are threads of one process: on no nodes, and without a storage of their own."""

    def __init__(self, rank: int, size: int, counted_by: "Collectives | None" = None) -> None:
        self.rank, self.size = rank, size
        self.bytes_sent = 0
        self.bytes_received = 0
        self.clock = Clock()
        """Told when a collective of a step begins and ends; a subgroup's is the larger group's."""
        self._counted_by = counted_by

    def all_gather(self, message: Tensor) -> Tensor:
        """Gather the (m,) messages of all N workers: (N, m), row i from rank i."""
        return self.start_all_gather(message).wait()

    def start_all_gather(self, message: Tensor) -> Gathering:
        """Begin to gather the (m,) messages of all N workers, while the caller does something else."""
        if self.size == 1:
            return Gathering(lambda: message.unsqueeze(0), self.clock)
        self.count((self.size - 1) * message.nbytes, (self.size - 1) * message.nbytes)
        with self.clock.phase("sending"):
            return Gathering(self._gather(message), self.clock)

    def all_to_all(
        self, messages: Tensor, sent_sizes: Sequence[int], received_sizes: Sequence[int]
    ) -> Tensor:
        """Send each worker its own part of ``messages``, and get every worker's part for us.

        Args:
            messages: (sum(sent_sizes),), the part for rank 0 first.
            sent_sizes: how many elements go to each rank; 0 for none.
            received_sizes: how many elements come from each rank.

        Returns (sum(received_sizes),), the part from rank 0 first.
        """
        if self.size == 1:
            return messages
        unit = messages.element_size()
        self.count(
            (sum(sent_sizes) - sent_sizes[self.rank]) * unit,
            (sum(received_sizes) - received_sizes[self.rank]) * unit,
        )
        with self.clock.phase("sending"):
            return self._scatter(messages, sent_sizes, received_sizes)

    def all_reduce_sum_(self, values: Tensor) -> Tensor:
        """Sum ``values`` over all workers, in place; every rank gets the same bits."""
        return self._all_reduce_(values, self._sum, "sending")

    def all_reduce_max_(self, values: Tensor) -> Tensor:
        """Elementwise maximum of ``values`` over all workers, in place: how they agree, and meet."""
        return self._all_reduce_(values, self._maximum, "waiting")

    def _all_reduce_(
        self, values: Tensor, reduce: Callable[[Tensor], Tensor], phase: Phase
    ) -> Tensor:
        if self.size == 1:
            return values
        share = 2 * values.nbytes * (self.size - 1) // self.size
        self.count(share, share)
        with self.clock.phase(phase):
            reduced = reduce(values)
            return values if reduced is values else values.copy_(reduced)

    def broadcast_(self, values: Tensor, source: int = 0) -> Tensor:
        """Overwrite ``values``, of any type, with those of the group's rank ``source``. Not counted."""
        if self.size > 1:
            with torch.no_grad():
                values.copy_(self._broadcast(values.detach(), source))
        return values

    def count(self, sent: int, received: int) -> None:
        """Add to the bytes exchanged so far."""
        self.bytes_sent += sent
        self.bytes_received += received
        if self._counted_by is not None:
            self._counted_by.count(sent, received)

    def check_joined(self) -> None:  # noqa: B027  # only processes can fail to meet
        """Raise UnsupportedError where a launcher started several workers and this one has no group."""

    def check_still_alone(self) -> None:  # noqa: B027  # likewise
        """Raise UnsupportedError where several workers have met since this was constructed without them."""

    def members_per_node(self, local: int) -> int | None:
        """How many of these workers are on each node; processes are numbered node by node, ``local`` on each.

        None where they are not equally many on each, or not processes at all.
        """
        return None

    def subgroup(self, ranks: Sequence[int], counted: bool) -> "Collectives":
        """Collectives over some of the workers, this one among them.

        Every worker makes the group that it belongs to, all at the same time, with equal ``ranks``.

        Args:
            ranks: the members, ascending.
            counted: whether the bytes that travel there are counted here as well.

        Raises UnsupportedError where the workers are no processes.
        """
        raise UnsupportedError(
            "exchange is 'hierarchical' but the workers share a process and are on no nodes: choose "
            "'allgather' or 'split'"
        )

    @abstractmethod
    def _gather(self, message: Tensor) -> Callable[[], Tensor]:
        """Begin to gather; what is returned waits for the (N, m) rows."""

    @abstractmethod
    def _scatter(
        self, messages: Tensor, sent_sizes: Sequence[int], received_sizes: Sequence[int]
    ) -> Tensor:
        """``all_to_all`` of several workers."""

    @abstractmethod
    def _sum(self, values: Tensor) -> Tensor:
        """The sum over all workers: ``values`` themselves, overwritten, or a tensor of their shape."""

    @abstractmethod
    def _maximum(self, values: Tensor) -> Tensor:
        """The elementwise maximum over all workers, likewise."""

    @abstractmethod
    def _broadcast(self, values: Tensor, source: int) -> Tensor:
        """The values of rank ``source``."""

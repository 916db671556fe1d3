"""The process group as GGS sees it: the few collectives it uses, with every byte counted.

This is the only module that calls ``torch.distributed`` collectives. Gloo fails on int16, uint16,
float8 and uneven gathers, and one failed collective poisons every later one. So what a model may hold
of any type travels as its bytes (broadcast), messages and facts are uint8 and int64, sums are of float32,
float64 or gradients' own type (float16 and bfloat16 too), and every rank knows all sizes beforehand.
"""

import os
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from ggs.dist.clock import Clock, Phase
from ggs.errors import UnsupportedError
from ggs.dist.lockstep import Worker

ProcessGroup = dist.ProcessGroup | Worker
"""Workers in processes, or in the threads of one (see ``ggs.dist.lockstep``)."""

# Newer torch renames all_gather_into_tensor and warns about the old name.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


_subgroups: WeakKeyDictionary[
    dist.ProcessGroup, dict[tuple[tuple[int, ...], timedelta | None], dist.ProcessGroup]
] = WeakKeyDictionary()
"""Those made so far, by parent, members and timeout. A group's threads and sockets live until it is
destroyed, so another optimizer over the same workers gets the same one."""


def _world_size() -> int:
    """Workers of the default group; 0 while there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 0


def stated_by_launcher(name: str) -> int | None:
    """The whole number that a launcher has put into the environment as ``name``; None if none above 0."""
    try:
        number = int(os.environ.get(name, ""))
    except ValueError:  # also one of more digits than Python reads
        return None
    return number if number > 0 else None


class Gathering:
    """An all-gather on its way; ``wait`` gives its result."""

    def __init__(
        self, rows: Tensor, device: torch.device, work: dist.Work | None, clock: Clock
    ) -> None:
        self._rows, self._device, self._work, self._clock = rows, device, work, clock

    def wait(self) -> Tensor:
        """(N, m): row i from rank i."""
        with self._clock.phase("sending"):
            if self._work is not None:
                self._work.wait()
            return self._rows.to(self._device)


class Collectives:
    """Collectives over one process group, or over nothing at all when there is a single process.

    ``bytes_sent`` and ``bytes_received`` count what this worker exchanges under the usual ring
    algorithms, which is also the least that any algorithm needs: (N-1)·m for gathering m bytes from
    each of N workers, 2·(N-1)/N·m for an all-reduce of m bytes.

    Args:
        group: None for the default one.
        counted_by: collectives over a larger group, which count this group's bytes as well.
    """

    def __init__(
        self, group: ProcessGroup | None = None, counted_by: "Collectives | None" = None
    ) -> None:
        self.group: dist.ProcessGroup | None = None
        self._here: Worker | None = None
        self.rank, self.size = 0, 1
        if isinstance(group, Worker):
            self._here = group
            self.rank, self.size = group.rank, group.size
        elif _world_size():
            self.group = dist.group.WORLD if group is None else group
            self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        elif group is not None:
            raise UnsupportedError(
                f"process_group is {group!r} but torch.distributed is not initialised: call "
                "init_process_group() first, or leave process_group out"
            )
        if self.rank < 0:
            raise UnsupportedError(
                "this process is not in the process group: construct the optimizer on its members only"
            )
        self.bytes_sent = 0
        self.bytes_received = 0
        self.clock = Clock()
        """Told when a collective of a step begins and ends; a subgroup's is the larger group's."""
        self._counted_by = counted_by

    def members_per_node(self, local: int) -> int | None:
        """How many of these workers are on each node; processes are numbered node by node, ``local`` on each.

        None where they are not equally many on each, or not processes at all.
        """
        if self.group is None:
            return None
        ranks, world = dist.get_process_group_ranks(self.group), dist.get_world_size()
        if ranks == list(range(world)):
            return local
        nodes = [rank // local for rank in ranks]
        members = set(Counter(nodes).values())
        alike = world % local == 0 and nodes == sorted(nodes) and len(members) == 1
        return members.pop() if alike else None

    def check_joined(self) -> None:
        """Raise UnsupportedError where a launcher started several workers and this one has no group."""
        workers = stated_by_launcher("WORLD_SIZE") or 1
        if self._is_alone and workers > 1:
            raise UnsupportedError(
                f"WORLD_SIZE is {workers} but torch.distributed is not initialised, and every worker would "
                "train a model of its own: call torch.distributed.init_process_group() before "
                "constructing the optimizer (or unset WORLD_SIZE)"
            )

    def check_still_alone(self) -> None:
        """Raise UnsupportedError where several workers have met since this was constructed without them."""
        if self._is_alone and _world_size() > 1:
            raise UnsupportedError(
                "torch.distributed was initialised after the optimizer was constructed, which would go "
                "on alone: call torch.distributed.init_process_group() before constructing the optimizer"
            )

    @property
    def _is_alone(self) -> bool:
        return self.group is None and self._here is None

    def device_for(self, device: torch.device) -> torch.device:
        """Where a tensor must live to travel: NCCL takes none from the CPU, gloo is happiest there."""
        if self.size == 1 or self.group is None:
            return device
        kinds = dist.get_backend(self.group)
        if device.type != "cpu" and "gloo" in str(kinds) and "nccl" not in str(kinds):
            return torch.device("cpu")
        return device

    def all_gather(self, message: Tensor) -> Tensor:
        """Gather the (m,) messages of all N workers: (N, m), row i from rank i."""
        return self.start_all_gather(message).wait()

    def start_all_gather(self, message: Tensor) -> Gathering:
        """Begin to gather the (m,) messages of all N workers, while the caller does something else."""
        device = message.device
        if self.size == 1:
            return Gathering(message.unsqueeze(0), device, None, self.clock)
        self.count((self.size - 1) * message.nbytes, (self.size - 1) * message.nbytes)
        with self.clock.phase("sending"):
            if self._here:
                return Gathering(self._here.all_gather(message), device, None, self.clock)
            travelling = message.to(self.device_for(device))
            gathered = travelling.new_empty(self.size * message.numel())
            work = _gather(gathered, travelling, group=self.group, async_op=True)
        return Gathering(gathered.view(self.size, message.numel()), device, work, self.clock)

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
            if self._here:
                return self._here.all_to_all(messages, sent_sizes)
            travelling = messages.to(self.device_for(messages.device))
            received = travelling.new_empty(sum(received_sizes))
            dist.all_to_all_single(
                received, travelling, list(received_sizes), list(sent_sizes), group=self.group
            )
            return received.to(messages.device)

    def all_reduce_sum_(self, values: Tensor) -> Tensor:
        """Sum ``values`` over all workers, in place; every rank gets the same bits."""
        return self._all_reduce(values, dist.ReduceOp.SUM, "sending")

    def all_reduce_max_(self, values: Tensor) -> Tensor:
        """Elementwise maximum of ``values`` over all workers, in place: how they agree, and meet."""
        return self._all_reduce(values, dist.ReduceOp.MAX, "waiting")

    def broadcast_(self, values: Tensor, source: int = 0) -> Tensor:
        """Overwrite ``values``, of any type, with those of the group's rank ``source``. Not counted."""
        if self.size > 1:
            if self._here:
                travelling = self._here.broadcast(values.detach(), source)
            else:
                travelling = values.detach().to(self.device_for(values.device)).contiguous()
                travelling = travelling.resolve_conj().resolve_neg()
                raw = travelling.view(-1).view(torch.uint8)  # the backends lack some types
                dist.broadcast(raw, group_src=source, group=self.group)
            with torch.no_grad():
                values.copy_(travelling)
        return values

    def _all_reduce(
        self, values: Tensor, operation: dist.ReduceOp.RedOpType, phase: Phase
    ) -> Tensor:
        if self.size == 1:
            return values
        share = 2 * values.nbytes * (self.size - 1) // self.size
        self.count(share, share)
        with self.clock.phase(phase):
            if self._here:
                summed = operation == dist.ReduceOp.SUM
                reduce = self._here.all_reduce_sum if summed else self._here.all_reduce_max
                return values.copy_(reduce(values))
            travelling = values.to(self.device_for(values.device))
            dist.all_reduce(travelling, op=operation, group=self.group)
            return values if travelling is values else values.copy_(travelling)

    def count(self, sent: int, received: int) -> None:
        """Add to the bytes exchanged so far."""
        self.bytes_sent += sent
        self.bytes_received += received
        if self._counted_by is not None:
            self._counted_by.count(sent, received)

    def subgroup(self, ranks: Sequence[int], counted: bool) -> "Collectives":
        """Collectives over some of the workers, this one among them, with this group's backend and timeout.

        Every worker makes the group that it belongs to, all at the same time, with equal ``ranks``.
        Made once, it serves every later call.

        Args:
            ranks: the members, ascending.
            counted: whether the bytes that travel there are counted here as well.
        """
        assert self.group is not None
        assert self.rank in ranks
        members = tuple(dist.get_global_rank(self.group, rank) for rank in ranks)
        timeout = _timeout(self.group)
        made = _subgroups.setdefault(self.group, {})
        group = made.get((members, timeout))
        if group is None or not _is_known(group):
            fresh = dist.new_group(
                list(members),
                timeout=timeout,
                backend=dist.get_backend_config(self.group),  # default: the default group's
                use_local_synchronization=True,
            )
            assert isinstance(fresh, dist.ProcessGroup)
            group = made[members, timeout] = fresh
        members_only = Collectives(group, self if counted else None)
        members_only.clock = self.clock
        return members_only


def _is_known(group: dist.ProcessGroup) -> bool:
    """Whether torch still knows a group: not once it, or the world, has been destroyed."""
    try:
        dist.get_process_group_ranks(group)
    except (KeyError, ValueError):
        return False
    return True


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """How long a group's collectives wait: torch tells it of each backend, and only there. None if not."""
    found = []
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        found.append(getattr(options, "_timeout", None))
    return min((timeout for timeout in found if timeout is not None), default=None)

"""Workers in processes: torch's process groups, made, used and left.

This is the only module that calls ``torch.distributed``. Gloo fails on int16, uint16, float8 and uneven
gathers, and one failed collective poisons every later one. So what a model may hold of any type travels
as its bytes (broadcast), messages and facts are uint8 and int64, sums are of float32, float64 or gradients'
own type (float16 and bfloat16 too), and every rank knows all sizes beforehand.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from ggs.dist.collectives import Collectives, stated_by_launcher
from ggs.dist.lockstep import LockstepCollectives, Worker
from ggs.errors import UnsupportedError

Group = dist.ProcessGroup | Worker
"""Workers in processes, or in the threads of one (see ``ggs.dist.lockstep``)."""

# Newer torch renames all_gather_into_tensor and warns about the old name.
_gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

_subgroups: WeakKeyDictionary[
    dist.ProcessGroup, dict[tuple[tuple[int, ...], timedelta | None], dist.ProcessGroup]
] = WeakKeyDictionary()
"""Those made so far, by parent, members and timeout. A group's threads and sockets live until it is
destroyed, so another optimizer over the same workers gets the same one."""


def connect(group: Group | None = None) -> Collectives:
    """Collectives over ``group``: None for torch's default one, or for a single process where there is none.

    Raises UnsupportedError where this process is not in the group, or nobody has made it.
    """
    if isinstance(group, Worker):
        return LockstepCollectives(group)
    if _world_size():
        return ProcessGroupCollectives(dist.group.WORLD if group is None else group)
    if group is not None:
        raise UnsupportedError(
            f"process_group is {group!r} but torch.distributed is not initialised: call "
            "init_process_group() first, or leave process_group out"
        )
    return ProcessGroupCollectives(None)


class ProcessGroupCollectives(Collectives):
    """Collectives over a process group, or over nothing at all where ``group`` is None."""

    def __init__(self, group: dist.ProcessGroup | None, counted_by: Collectives | None = None) -> None:
        rank, size = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        if rank < 0:
            raise UnsupportedError(
                "this process is not in the process group: construct the optimizer on its members only"
            )
        super().__init__(rank, size, counted_by)
        self.group = group

    def check_joined(self) -> None:
        """See ``Collectives.check_joined``."""
        workers = stated_by_launcher("WORLD_SIZE") or 1
        if self.group is None and workers > 1:
            raise UnsupportedError(
                f"WORLD_SIZE is {workers} but torch.distributed is not initialised, and every worker would "
                "train a model of its own: call torch.distributed.init_process_group() before "
                "constructing the optimizer (or unset WORLD_SIZE)"
            )

    def check_still_alone(self) -> None:
        """See ``Collectives.check_still_alone``."""
        if self.group is None and _world_size() > 1:
            raise UnsupportedError(
                "torch.distributed was initialised after the optimizer was constructed, which would go "
                "on alone: call torch.distributed.init_process_group() before constructing the optimizer"
            )

    def members_per_node(self, local: int) -> int | None:
        """See ``Collectives.members_per_node``."""
        if self.group is None:
            return None
        ranks, world = dist.get_process_group_ranks(self.group), dist.get_world_size()
        if ranks == list(range(world)):
            return local
        nodes = [rank // local for rank in ranks]
        members = set(Counter(nodes).values())
        alike = world % local == 0 and nodes == sorted(nodes) and len(members) == 1
        return members.pop() if alike else None

    def subgroup(self, ranks: Sequence[int], counted: bool) -> "ProcessGroupCollectives":
        """See ``Collectives.subgroup``. It has this group's backend and timeout, and is made only once."""
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
        members_only = ProcessGroupCollectives(group, self if counted else None)
        members_only.clock = self.clock
        return members_only

    def _travelling(self, values: Tensor) -> Tensor:
        """``values`` where they can travel: NCCL takes none from the CPU, gloo is happiest there."""
        backends = str(dist.get_backend(self.group))
        by_gloo = "gloo" in backends and "nccl" not in backends
        return values.cpu() if by_gloo else values

    def _gather(self, message: Tensor) -> Callable[[], Tensor]:
        sent = self._travelling(message)
        rows = sent.new_empty(self.size * message.numel())
        work = _gather_into(rows, sent, group=self.group, async_op=True)
        assert work is not None

        def arrived() -> Tensor:
            work.wait()
            return rows.view(self.size, message.numel()).to(message.device)

        return arrived

    def _scatter(
        self, messages: Tensor, sent_sizes: Sequence[int], received_sizes: Sequence[int]
    ) -> Tensor:
        sent = self._travelling(messages)
        received = sent.new_empty(sum(received_sizes))
        dist.all_to_all_single(
            received, sent, list(received_sizes), list(sent_sizes), group=self.group
        )
        return received.to(messages.device)

    def _sum(self, values: Tensor) -> Tensor:
        return self._reduce(values, dist.ReduceOp.SUM)

    def _maximum(self, values: Tensor) -> Tensor:
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        reduced = self._travelling(values)
        dist.all_reduce(reduced, op=operation, group=self.group)
        return reduced

    def _broadcast(self, values: Tensor, source: int) -> Tensor:
        travelling = self._travelling(values).contiguous().resolve_conj().resolve_neg()
        raw = travelling.view(-1).view(torch.uint8)  # the backends lack some types
        dist.broadcast(raw, group_src=source, group=self.group)
        return travelling


def join(backend: str, rendezvous_timeout: float, collective_timeout: float) -> dist.ProcessGroup:
    """Meet the workers that the environment describes; a group of all of them.

    Args:
        rendezvous_timeout: seconds to wait for the others to come.
        collective_timeout: seconds that a collective of the group may take.
    """
    dist.init_process_group(backend, timeout=timedelta(seconds=rendezvous_timeout))
    return _new_group(None, collective_timeout)


def background_group(timeout: float) -> dist.ProcessGroup | None:
    """A gloo group of all workers for another thread: collectives of two threads in one group would mix.

    None where there is no process group. ``timeout`` in seconds; a collective.
    """
    return _new_group("gloo", timeout) if _world_size() else None


def leave() -> None:
    """Destroy all process groups, if there are any."""
    if _world_size():
        dist.destroy_process_group()


def try_gloo() -> None:
    """Make and leave a group of this process alone. Raises whatever torch raises; no-op in a group."""
    if not _world_size():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        dist.destroy_process_group()


def has_nccl() -> bool:
    """Whether this torch was built with NCCL."""
    return dist.is_nccl_available()


def is_communication_error(error: BaseException) -> bool:
    """Whether torch raised ``error`` because other workers went away or did not answer."""
    return isinstance(error, dist.DistError) or "/gloo/" in str(error)


def _world_size() -> int:
    """Workers of the default group; 0 while there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 0


def _new_group(backend: str | None, timeout: float) -> dist.ProcessGroup:
    group = dist.new_group(backend=backend, timeout=timedelta(seconds=timeout))
    assert isinstance(group, dist.ProcessGroup)  # every rank is a member
    return group


def _is_known(group: dist.ProcessGroup) -> bool:
    """Whether torch still knows a group: not once it, or the world, has been destroyed."""
    try:
        dist.get_process_group_ranks(group)
    except (KeyError, ValueError):
        return False
    return True


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """How long a group's collectives wait: torch tells it of each backend, and only there. None if not."""
    timeouts = []
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        timeouts.append(getattr(options, "_timeout", None))
    return min((timeout for timeout in timeouts if timeout is not None), default=None)

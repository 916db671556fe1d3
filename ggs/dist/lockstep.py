"""N workers of one training in one process: threads that take turns, bit-identical to N processes.

    results = lockstep.run(4, lambda worker: train(worker), seed)

On a small machine N processes cost N times the imports, the data and the memory, and wait for each other
on too few cores. Here one thread stands for each worker, but only one of them runs at a time: up to its
next collective, where the next worker's turn comes. Since nothing ever runs at once, the result does not
depend on the machine, and what is global in a process, torch's random numbers, is every worker's own:
they are exchanged with the turn.

``ggs.dist.process_group.connect`` takes a ``Worker`` where it takes a process group.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ggs.dist.collectives import Collectives

T = TypeVar("T")

_SEGMENT_BYTES = 1 << 20
"""Gloo's default for the longest part of a message that is reduced at once."""


class Abandoned(Exception):
    """Another worker failed; this one cannot go on."""


class _Table:
    """Where the workers put what the others get, and whose turn it is."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.turns = [threading.Semaphore(0) for _ in range(size)]
        self.contributions: list[Any] = []
        self.running = list(range(size))
        self.failed = False


class Worker:
    """One worker of a group in this process: its ``rank`` and the group's ``size``."""

    def __init__(self, table: _Table, rank: int) -> None:
        self._table = table
        self.rank, self.size = rank, table.size

    def exchange(self, contribution: Any) -> list[Any]:
        """What all workers contribute to this collective, in rank order; read only."""
        table = self._table
        contributions = table.contributions
        contributions.append(contribution)
        if len(contributions) == self.size:
            table.contributions = []
        state = _random_state()
        self._pass_on()
        table.turns[self.rank].acquire()
        if table.failed:
            raise Abandoned
        _set_random_state(state)
        if len(contributions) < self.size:  # some worker ended instead of taking part
            raise RuntimeError(
                f"rank {self.rank} waits for a collective that not all {self.size} workers call"
            )
        return contributions

    def _pass_on(self) -> None:
        running = self._table.running
        following = [rank for rank in running if rank > self.rank] or running
        if following:
            self._table.turns[following[0]].release()


class LockstepCollectives(Collectives):
    """Collectives over the workers of one process. Every worker's tensors are its own, as with processes:
    nothing that is returned is shared.
    """

    shares_process = True

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.rank, worker.size)
        self._worker = worker

    def _gather(self, message: Tensor) -> Callable[[], Tensor]:
        rows = torch.stack(self._worker.exchange(message.clone()))
        return lambda: rows

    def _scatter(
        self, messages: Tensor, sent_sizes: Sequence[int], received_sizes: Sequence[int]
    ) -> Tensor:
        parts = torch.split(messages.clone(), list(sent_sizes))
        return torch.cat([others[self.rank] for others in self._worker.exchange(parts)])

    def _sum(self, values: Tensor) -> Tensor:
        return ring_sum(self._worker.exchange(values.clone()))

    def _maximum(self, values: Tensor) -> Tensor:
        return torch.stack(self._worker.exchange(values.clone())).amax(0)

    def _broadcast(self, values: Tensor, source: int) -> Tensor:
        values_of_source: Tensor = self._worker.exchange(values.clone())[source]
        return values_of_source


def alone() -> Worker:
    """A group of one, for whoever is alone on purpose whatever a launcher has set."""
    return Worker(_Table(1), 0)


def run(size: int, function: Callable[..., T], *arguments: Any) -> list[T]:
    """Call ``function(worker, *arguments)`` once for each of ``size`` workers; their results by rank.

    Raises what the first worker that fails raises; the others are ended at their next collective.
    """
    table = _Table(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []
    state = _random_state()

    def work(rank: int) -> None:
        worker = Worker(table, rank)
        table.turns[rank].acquire()
        try:
            if not table.failed:
                _set_random_state(state)
                results[rank] = function(worker, *arguments)
        except Abandoned:
            pass
        except BaseException as error:
            errors.append(error)
            table.failed = True
        finally:
            table.running.remove(rank)
            worker._pass_on()

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    table.turns[0].release()
    for thread in threads:
        thread.join()
    _set_random_state(state)
    if errors:
        raise errors[0]
    return results


def ring_sum(contributions: Sequence[Tensor]) -> Tensor:
    """The sum of N equally long tensors, each element's terms added in the order of gloo's ring.

    Gloo cuts the values into one chunk per rank. A chunk starts at the rank below its own and goes
    round to its own, downwards; every rank on the way adds its values. Float sums depend on the
    order, so bit-identity with processes needs the same.
    """
    size, first = len(contributions), contributions[0]
    rows = [contribution.reshape(-1) for contribution in contributions]
    segments = -(-max(-(-first.nbytes // _SEGMENT_BYTES), 2 * size) // size) * size
    chunk = -(-first.numel() // segments) * (segments // size)
    total = torch.empty_like(rows[0])
    for owner in range(size):
        part = slice(owner * chunk, (owner + 1) * chunk)
        order = [(owner - 1 - step) % size for step in range(size)]
        result = rows[order[0]][part]
        for rank in order[1:]:
            result = rows[rank][part] + result
        total[part] = result
    return total.view_as(first)


def _random_state() -> tuple[Tensor, list[Tensor]]:
    on_gpus = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if on_gpus else []


def _set_random_state(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])

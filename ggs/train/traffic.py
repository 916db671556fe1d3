"""What a worker will send in a step and in a run, from the numbers of elements and workers alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from ggs.exchange import allgather, split
from ggs.exchange.auto import choose
from ggs.exchange.base import cut
from ggs.exchange.create import averaging_workers
from ggs.exchange.forecast import ring_bytes
from ggs.optim.base import DistributedOptimizer
from ggs.optim.error_feedback import ResidualOptimizer
from ggs.optim.schedule import exponential_warmup, selected_count
from ggs.train.config import TrainConfig

WARMUP_PARTS = 500
"""So many that the densities of a part are close together and its middle is wrong by less than 1e-4; and
so few that it takes a second where 16 workers choose their exchange."""


@dataclass(frozen=True)
class Traffic:
    """What one worker sends in a step."""

    exchange: str
    elements: int
    """Sparse elements that are selected."""
    bytes_sent: int
    """Headers and the workers' agreement counted."""
    dense_bytes: int
    """What a dense ring all-reduce sends."""

    @property
    def exact(self) -> bool:
        """Whether every worker sends just so much in every step: ranges move with the residuals."""
        return "split" not in self.exchange


@dataclass(frozen=True)
class WholeRun:
    """What one worker sends in all steps, where none is skipped."""

    bytes_sent: int
    dense_bytes: int
    """What dense ring all-reduces send in as many steps."""
    exact: bool


class Forecast:
    """What each of ``workers`` will send.

    Args:
        config: the run.
        optimizer: the run's, in a single process.
        agreed: bytes of each message with which the workers agree in a step.
        workers: of all tasks.
        local: of each task.
    """

    def __init__(
        self,
        config: TrainConfig,
        optimizer: DistributedOptimizer,
        agreed: Sequence[int],
        workers: int,
        local: int,
    ) -> None:
        self._config, self._optimizer = config, optimizer
        self._workers, self._local = workers, local
        own = (p for p in optimizer.model.parameters() if p.requires_grad)
        self._dense = self._ring(sum(p.numel() * p.element_size() for p in own))
        self._agreement = sum(self._ring(size) for size in agreed)

    def _ring(self, size: int) -> int:
        return int(ring_bytes(size, self._workers))

    def step(self, density: float) -> Traffic:
        """A step that sends ``density`` of the elements, if it selects any at all.

        Raises ConfigurationError for an exchange that is impossible with these workers.
        """
        optimizer = self._optimizer
        if not isinstance(optimizer, ResidualOptimizer):
            shared = self._ring(sum(p.numel() * p.element_size() for _, p in optimizer.shared))
            return Traffic("all-reduce", 0, self._agreement + shared, self._dense)
        flat = optimizer.flat
        segments = flat.segments(per_tensor=self._config.scope == "tensor")
        counts = [selected_count(numel, density) for _, numel in segments]
        whole = self._ring(flat.dense_numel * flat.dtype.itemsize)
        offsets = (*(start for start, _ in segments), flat.numel - flat.dense_numel)
        name, sent = _exchange(
            self._config, offsets, counts, self._workers, self._local, optimizer.device
        )
        return Traffic(name, sum(counts), self._agreement + whole + sent, self._dense)

    def run(self, steps: int, warmup: int) -> WholeRun:
        """All ``steps``, of which the density warm-up is the first ``warmup``.

        Of a long warm-up one step in the middle of each of ``WARMUP_PARTS`` parts stands for all of it.
        """
        settled, warm = self.step(self._config.density), min(steps, warmup)
        density = exponential_warmup(self._config.density, warmup)
        length = -(-warm // WARMUP_PARTS) | 1  # odd, so that there is a step in the middle
        parts = [range(first, min(first + length, warm)) for first in range(0, warm, length)]
        found = [(len(part), self.step(density(part[len(part) // 2]))) for part in parts]
        found.append((steps - warm, settled))
        return WholeRun(
            sum(count * step.bytes_sent for count, step in found),
            steps * self._dense,
            length == 1 and all(step.exact for count, step in found if count),
        )


def _exchange(
    config: TrainConfig,
    offsets: tuple[int, ...],
    counts: list[int],
    workers: int,
    local: int,
    device: torch.device,
) -> tuple[str, int]:
    """The exchange that ``config`` leads to, and the bytes that the worker that sends most sends."""
    local = config.workers_per_node or local
    averaging = averaging_workers(config.exchange, workers, local)
    if averaging == 1:
        sharing = 1 if workers % local else local
        return _flat(config.exchange, offsets, counts, workers, sharing, config.values, device)
    numel = offsets[-1]
    borders = [numel * rank // local for rank in range(local + 1)]
    found = [
        _flat(
            "auto", *_share(offsets, counts, a, b), workers // local, local, config.values, device
        )
        for a, b in pairwise(borders)
    ]
    return f"hierarchical, {found[0][0]} between the nodes", max(sent for _, sent in found)


def _share(
    offsets: tuple[int, ...], counts: list[int], start: int, stop: int
) -> tuple[tuple[int, ...], list[int]]:
    inner, parts = cut(offsets, counts, start, stop)
    return inner, list(parts)


def _flat(
    name: str,
    offsets: tuple[int, ...],
    counts: list[int],
    workers: int,
    local: int,
    values: str,
    device: torch.device,
) -> tuple[str, int]:
    numel, count = offsets[-1], sum(counts)
    if workers == 1 or name not in ("allgather", "split"):
        name, _ = choose(numel, count, workers, local, values, device.type)
    if name == "split":
        found = split.ranges(offsets, tuple(counts), workers, values, None)
        return name, split.bytes_sent(found, values)
    return name, allgather.bytes_sent(numel, count, workers, values)

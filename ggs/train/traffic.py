"""What a worker will send in a step, from the numbers of elements and workers alone."""

from dataclasses import dataclass
from itertools import pairwise

import torch

from ggs.cost import ring_bytes
from ggs.exchange import allgather, averaging_workers, split
from ggs.exchange.auto import choose
from ggs.exchange.base import cut
from ggs.residual import ResidualOptimizer
from ggs.schedule import selected_count
from ggs.train.config import TrainConfig
from ggs.wrapper import DistributedOptimizer


@dataclass(frozen=True)
class Traffic:
    """What one worker sends in a step after the density warm-up."""

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


def foretell(
    config: TrainConfig, optimizer: DistributedOptimizer, agreed: int, workers: int, local: int
) -> Traffic:
    """What each of ``workers`` will send.

    Args:
        config: the run.
        optimizer: the run's, in a single process.
        agreed: bytes of the workers' agreement on a step.
        workers: of all tasks.
        local: of each task.

    Raises ConfigurationError for an exchange that is impossible with these workers.
    """
    device = optimizer.device
    shared = sum(p.numel() * p.element_size() for _, p in optimizer.shared)
    own = sum(p.numel() * p.element_size() for p in optimizer.model.parameters() if p.requires_grad)
    dense = int(ring_bytes(own, workers))
    agreement = int(ring_bytes(agreed, workers))
    if not isinstance(optimizer, ResidualOptimizer):
        return Traffic("all-reduce", 0, agreement + int(ring_bytes(shared, workers)), dense)
    flat = optimizer.flat
    segments = flat.segments(per_tensor=config.scope == "tensor")
    numel = flat.numel - flat.dense_numel
    counts = [selected_count(part, config.density) for _, part in segments]
    whole = int(ring_bytes(flat.dense_numel * flat.dtype.itemsize, workers))
    offsets = (*(start for start, _ in segments), numel)
    name, sent = _exchange(config, offsets, counts, workers, local, device)
    return Traffic(name, sum(counts), agreement + whole + sent, dense)


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

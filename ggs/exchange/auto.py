"""The exchange that the cost model finds cheapest.

The choice depends on the numbers of elements and workers alone, never on a clock, so a run can be
repeated. All-gather delivers more elements in a step than split does, so it stays unless split is
cheaper by a margin, on a network faster than most: a small model is never made slower.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ggs.collectives import Collectives
from ggs.cost import ASSUMED_CPU, ASSUMED_GPU, ExchangeCost, Network, ring_bytes
from ggs.exchange import allgather, split
from ggs.exchange.allgather import AllGather
from ggs.exchange.base import Exchange, Task, Update
from ggs.exchange.split import Split

MARGIN = 1.25
"""How many times cheaper another exchange must be."""

_log = logging.getLogger("ggs")


def allgather_cost(numel: int, count: int, size: int, values_format: str) -> ExchangeCost:
    """Every worker sends ``count`` of ``numel`` elements to ``size - 1`` others."""
    number = allgather.pieces(numel, count, size, values_format)
    sent = allgather.bytes_sent(numel, count, size, values_format)
    return ExchangeCost(sent, number * (size - 1), number * (size + 1), count * (size + 1))


def split_cost(numel: int, count: int, size: int, values_format: str) -> ExchangeCost:
    """Two rounds by index range, with ranges of equal size."""
    found = split.ranges((0, numel), (count,), size, values_format, None)
    second = sum(sum(parts) for parts in found.second)
    sent = split.bytes_sent(found, values_format)
    pairwise = sent - (size - 1) * split.second_size(found, values_format)
    elements = 2 * count + second * (size + 1) / size
    return ExchangeCost(sent, 2 * (size - 1), 3 * size, elements, pairwise)


def hierarchical_cost(
    numel: int, count: int, nodes: int, local: int, values_format: str, network: Network
) -> ExchangeCost:
    """Gradients averaged in a node of ``local`` workers; a share each between the nodes."""
    share, part = -(-numel // local), -(-count // local)
    flat = cheapest_flat(share, part, nodes, values_format, network, local)[1]
    passed_on = flat.elements * 12 * (local - 1)
    return replace(
        flat,
        rounds=flat.rounds + 4 * local,
        elements=flat.elements * local,
        pairwise_bytes=flat.bytes_sent,  # a ring for each share
        local_bytes=ring_bytes(4 * numel, local) + passed_on,
    )


def cheapest_flat(
    numel: int, count: int, size: int, values_format: str, network: Network, sharing: int
) -> tuple[str, ExchangeCost]:
    """All-gather or split, and what it costs."""
    gather = allgather_cost(numel, count, size, values_format)
    if size < 4:
        return "allgather", gather
    ranges = split_cost(numel, count, size, values_format)
    if ranges.seconds(network, sharing) * MARGIN < gather.seconds(network, sharing):
        return "split", ranges
    return "allgather", gather


def prefers_hierarchical(numel: int, count: int, size: int, local: int, values_format: str) -> bool:
    """Whether GPUs should average gradients inside their nodes and exchange between nodes only."""
    _, flat = cheapest_flat(numel, count, size, values_format, ASSUMED_GPU, local)
    tiers = hierarchical_cost(numel, count, size // local, local, values_format, ASSUMED_GPU)
    seconds = tiers.seconds(ASSUMED_GPU, local)
    return seconds * MARGIN < flat.seconds(ASSUMED_GPU, local)


class Auto(Exchange):
    """All-gather or split, chosen for each number of selected elements; both have the same residual.

    Args:
        sharing: workers on this node.
    """

    def __init__(self, collectives: Collectives, task: Task, sharing: int = 1) -> None:
        super().__init__(collectives, task)
        self._sharing = sharing
        self._exchanges = {
            "allgather": AllGather(collectives, task),
            "split": Split(collectives, task),
        }
        self.state = self._exchanges["split"].state
        self._choices: dict[int, str] = {}
        self._last = ""

    def run(self, counts: Sequence[int], step: int) -> Iterator[Update]:
        """See ``Exchange.run``."""
        exchange = self._exchanges[self._choose(sum(counts))]
        yield from exchange.run(counts, step)
        self.selected = exchange.selected

    def _choose(self, count: int) -> str:
        if count not in self._choices:
            task, size = self.task, self.collectives.size
            network = ASSUMED_CPU if task.residual.device.type == "cpu" else ASSUMED_GPU
            name, cost = cheapest_flat(
                task.numel, count, size, task.values_format, network, self._sharing
            )
            self._choices[count] = name
            if name != self._last and self.collectives.rank == 0:
                _log.info(
                    "exchange: %s, for %s of %s elements on %d workers; sends %.3f MB a worker and step",
                    name, f"{count:,}", f"{task.numel:,}", size, cost.bytes_sent / 1e6,
                )  # fmt: skip
                self._last = name
        return self._choices[count]

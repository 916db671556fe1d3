"""All-gather or split, whichever the cost model finds cheaper.

Both are the same algorithm, so the choice changes what a step costs and not what is trained. Hierarchical
is another one: there is a hint where it would be cheaper, no more. The choice depends on the numbers of
elements and workers alone, never on a clock or the network at hand, so a run can be repeated. All-gather
delivers more elements in a step than split does, so it stays unless split is cheaper by a margin, on a
network faster than most: a small model is never made slower.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ggs.dist.collectives import Collectives
from ggs.exchange import allgather, split
from ggs.exchange.allgather import AllGather
from ggs.exchange.base import Exchange, ExchangeTask, Update
from ggs.exchange.forecast import ExchangeCost, Network, assumed, ring_bytes
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
    numel: int, count: int, nodes: int, local: int, values_format: str, device_type: str
) -> tuple[str, ExchangeCost]:
    """Gradients averaged in a node of ``local`` workers; the exchange between the nodes of a share each."""
    share, part = -(-numel // local), -(-count // local)
    name, flat = choose(share, part, nodes, local, values_format, device_type)
    passed_on = flat.elements * 12 * (local - 1)
    return name, replace(
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


def choose(
    numel: int, count: int, size: int, sharing: int, values_format: str, device_type: str
) -> tuple[str, ExchangeCost]:
    """What "auto" takes: "allgather" or "split", and its cost. The dry run and ``ggs plan`` ask here too.

    Args:
        sharing: workers on each node.
        device_type: "cpu", or anything else for GPUs.
    """
    return cheapest_flat(numel, count, size, values_format, assumed(device_type), sharing)


def hint(
    numel: int, count: int, size: int, local: int, values_format: str, device_type: str
) -> str | None:
    """What to tell the owner of nodes with several GPUs where hierarchical is cheaper by the margin."""
    if device_type == "cpu" or not 1 < local < size or size % local:
        return None
    _, flat = choose(numel, count, size, local, values_format, device_type)
    _, tiers = hierarchical_cost(numel, count, size // local, local, values_format, device_type)
    network = assumed(device_type)
    if tiers.seconds(network, local) * MARGIN >= flat.seconds(network, local):
        return None
    return (
        f"hint: exchange=hierarchical would send {tiers.node_bytes(local) / 1e6:.3f} MB instead of "
        f"{flat.node_bytes(local) / 1e6:.3f} MB per node and step; it averages gradients inside a node "
        "before the optimizer"
    )


class Auto(Exchange):
    """All-gather or split, chosen for each number of selected elements; both have the same residual.

    Args:
        sharing: workers on this node.
        hints: whether to tell, once, where hierarchical would be cheaper.
    """

    def __init__(
        self, collectives: Collectives, task: ExchangeTask, sharing: int = 1, hints: bool = False
    ) -> None:
        super().__init__(collectives, task)
        self._sharing = sharing
        self._hints = hints and collectives.rank == 0
        self._exchanges = {
            "allgather": AllGather(collectives, task),
            "split": Split(collectives, task),
        }
        self.state = self._exchanges["split"].state
        self._choices: dict[int, str] = {}
        self._last = ""
        self._last_count = -1

    def load(self, state: dict[str, Any]) -> None:
        """See ``Exchange.load``."""
        self._exchanges["split"].load(state)

    def run(self, counts: Sequence[int], step: int) -> Iterator[Update]:
        """See ``Exchange.run``."""
        count = sum(counts)
        exchange = self._exchanges[self._choose(count)]
        if self._hints and count == self._last_count:  # after the warm-up, whose costs soon pass
            self._hints = False
            if text := hint(*self._sizes(count)):
                _log.info("%s", text)
        self._last_count = count
        yield from exchange.run(counts, step)
        self.selected = exchange.selected

    def _sizes(self, count: int) -> tuple[int, int, int, int, str, str]:
        task = self.task
        device = task.residual.device.type
        return task.numel, count, self.collectives.size, self._sharing, task.values_format, device

    def _choose(self, count: int) -> str:
        if count not in self._choices:
            name, cost = choose(*self._sizes(count))
            self._choices[count] = name
            if name != self._last and self.collectives.rank == 0:
                _log.info(
                    "exchange: %s, for %s of %s elements on %d workers; sends %.3f MB a worker and step",
                    name, f"{count:,}", f"{self.task.numel:,}", self.collectives.size,
                    cost.bytes_sent / 1e6,
                )  # fmt: skip
                self._last = name
        return self._choices[count]

"""What each exchange sends in a step, and how long it takes, from the numbers of elements and workers alone.

The exchange "auto", the dry run and ``ggs plan`` all ask here.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ggs.exchange import allgather, split
from ggs.exchange.base import cut
from ggs.exchange.cost import ExchangeCost, Network, assumed, ring_bytes
from ggs.exchange.hierarchical import averaging_workers
from ggs.text import readable_bytes
from ggs.wire import message_size

MARGIN = 1.25
"""How many times cheaper another exchange must be."""


def allgather_bytes(numel: int, count: int, size: int, values_format: str) -> int:
    """Bytes that a worker sends in a step: its selection, in pieces, to every other."""
    lengths = [b - a for a, b in pairwise(allgather.cuts(numel, count, size, values_format))]
    return (size - 1) * sum(
        message_size(allgather.piece_numel(numel, count, length), length, values_format)
        for length in lengths
    )


def split_bytes(ranges: split.Ranges, values_format: str) -> int:
    """Bytes that the worker that sends most sends in a step: to the ranges' owners, and as one to all."""
    others = len(ranges.first) - 1
    to_all = others * split.second_size(ranges, values_format)
    return split.largest_first_bytes(ranges, values_format) + to_all


def bytes_sent(
    name: str,
    offsets: tuple[int, ...],
    counts: Sequence[int],
    size: int,
    local: int,
    values_format: str,
    device_type: str,
) -> tuple[str, int]:
    """The exchange that the setting ``name`` leads to, in words, and the bytes that the worker that sends
    most sends in a step.

    Args:
        offsets, counts: the segments, and how many elements are selected from each.
        size, local: workers in all, and on each node.

    Raises ConfigurationError for an exchange that is impossible with these workers.
    """
    kinds = values_format, device_type
    if averaging_workers(name, size, local) == 1:
        return _flat_bytes(name, offsets, counts, size, 1 if size % local else local, *kinds)
    shares = [offsets[-1] * rank // local for rank in range(local + 1)]
    per_share = [
        _flat_bytes("auto", *cut(offsets, counts, start, stop), size // local, local, *kinds)
        for start, stop in pairwise(shares)
    ]
    return f"hierarchical, {per_share[0][0]} between the nodes", max(sent for _, sent in per_share)


def _flat_bytes(
    name: str,
    offsets: tuple[int, ...],
    counts: Sequence[int],
    size: int,
    sharing: int,
    values_format: str,
    device_type: str,
) -> tuple[str, int]:
    numel, count = offsets[-1], sum(counts)
    if size == 1 or name not in ("allgather", "split"):
        name, _ = choose(numel, count, size, sharing, values_format, device_type)
    if name == "split":
        ranges = split.ranges_of(offsets, tuple(counts), size, values_format, None)
        return name, split_bytes(ranges, values_format)
    return name, allgather_bytes(numel, count, size, values_format)


def allgather_cost(numel: int, count: int, size: int, values_format: str) -> ExchangeCost:
    """Every worker sends ``count`` of ``numel`` elements to ``size - 1`` others."""
    pieces = allgather.pieces(numel, count, size, values_format)
    sent = allgather_bytes(numel, count, size, values_format)
    return ExchangeCost(sent, pieces * (size - 1), pieces * (size + 1), count * (size + 1))


def split_cost(numel: int, count: int, size: int, values_format: str) -> ExchangeCost:
    """Two rounds by index range, with ranges of equal size."""
    ranges = split.ranges_of((0, numel), (count,), size, values_format, None)
    second = sum(sum(parts) for parts in ranges.second)
    elements = 2 * count + second * (size + 1) / size
    return ExchangeCost(
        split_bytes(ranges, values_format),
        2 * (size - 1),
        3 * size,
        elements,
        pairwise_bytes=split.largest_first_bytes(ranges, values_format),
    )


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
        f"hint: exchange=hierarchical would send {readable_bytes(tiers.node_bytes(local))} instead of "
        f"{readable_bytes(flat.node_bytes(local))} per node and step; it averages gradients inside a node "
        "before the optimizer"
    )

"""What bytes, messages and elements cost: seconds. Imports nothing of torch.

``OVERHEADS`` is fitted to a recorded table. The other constants are rough orders of magnitude: they
matter where two exchanges are compared, not as predictions of their own.
"""

from dataclasses import dataclass

MESSAGE_SECONDS = 30e-6
"""Coding or decoding one message, whatever is in it."""
ELEMENT_SECONDS = 15e-9
"""Coding, decoding or adding one element."""


@dataclass(frozen=True)
class Network:
    """What a node has.

    Attributes:
        bandwidth: bits per second between a node and the others, each way, shared by its workers.
        latency: seconds until a message's first byte arrives.
        local: bits per second between the workers of a node, each way.
    """

    bandwidth: float
    latency: float
    local: float


ASSUMED_CPU = Network(10e9, 30e-6, 8e9)
"""What "auto" assumes where gloo carries the bytes: where a network is slower, its choice pays more."""
ASSUMED_GPU = Network(25e9, 20e-6, 400e9)
"""The same for NCCL: a 25 Gbit/s network card and a link of 50 Gbyte/s between GPUs."""


def assumed(device_type: str) -> Network:
    """The network that "auto" assumes between workers on "cpu" or on GPUs."""
    return ASSUMED_CPU if device_type == "cpu" else ASSUMED_GPU


@dataclass(frozen=True)
class ExchangeCost:
    """What one worker does in one step of an exchange.

    Attributes:
        bytes_sent: to workers on any node.
        pairwise_bytes: of these, sent each to its own receiver: every worker of a node puts its own on
            the node's network, where a ring crosses it once for all of them.
        rounds: messages that wait for each other.
        messages: messages coded and decoded.
        elements: elements coded, decoded and added.
        local_bytes: to workers on the same node, over the local link.
    """

    bytes_sent: float
    rounds: int
    messages: int
    elements: float
    pairwise_bytes: float = 0.0
    local_bytes: float = 0.0

    def node_bytes(self, sharing: int) -> float:
        """What a node of ``sharing`` workers puts on the network between nodes."""
        return self.bytes_sent + self.pairwise_bytes * (sharing - 1)

    def seconds(self, network: Network, sharing: int = 1) -> float:
        """Time of a step's exchange; ``sharing`` workers of a node use its network at once."""
        return (
            self.node_bytes(sharing) * 8 / network.bandwidth
            + self.local_bytes * 8 / network.local
            + self.rounds * network.latency
            + self.messages * MESSAGE_SECONDS
            + self.elements * ELEMENT_SECONDS
        )


def ring_bytes(size: float, workers: int) -> float:
    """Bytes that a worker sends in a ring all-reduce of ``size`` bytes."""
    return 2 * size * (workers - 1) / workers


@dataclass(frozen=True)
class Overhead:
    """What a method adds to a step without communication, measured on four one-thread CPU workers.

    Attributes:
        per_parameter: seconds of arithmetic per parameter, moving the bytes through the CPU included.
        hidden: share of the step during which the network already works, bucket by bucket; None for
            an exchange that follows the arithmetic.
    """

    per_parameter: float
    hidden: float | None = None

    def seconds(self, floor: float, arithmetic: float, wire: float) -> float:
        """The whole step's time.

        Args:
            floor: seconds of the step without communication.
            arithmetic: seconds of the method's own.
            wire: seconds that its bytes need on the network.
        """
        if self.hidden is None:
            return floor + arithmetic + wire
        return floor + max(arithmetic, wire - self.hidden * floor)


OVERHEADS = {
    "ggs": Overhead(1.5e-9),
    "ddp": Overhead(10.4e-9, hidden=0.28),
    "ddp bf16": Overhead(9.0e-9, hidden=0.24),
    "powersgd 1": Overhead(13.5e-9),
    "powersgd 4": Overhead(25.4e-9),
}
"""By method; what ``benchmarks/network_fit.py`` finds in docs/results/network.jsonl."""

GPU_SPEEDUP = 40.0
"""How much faster a GPU's memory is than a CPU worker's, and so a method's arithmetic there."""

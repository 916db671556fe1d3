"""What an exchange costs: seconds from bytes, messages and elements. Imports nothing of torch.

The constants are measured on ordinary CPUs and rounded; ``ggs plan`` calibrates the larger ones anew
from the recorded table. They matter where two exchanges are compared, not as predictions of their own.
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


@dataclass(frozen=True)
class ExchangeCost:
    """What one worker does in one step of an exchange.

    Attributes:
        bytes_sent: to workers on any node.
        rounds: messages that wait for each other.
        messages: messages coded and decoded.
        elements: elements coded, decoded and added.
        local_bytes: to workers on the same node, over the local link.
    """

    bytes_sent: float
    rounds: int
    messages: int
    elements: float
    local_bytes: float = 0.0

    def seconds(self, network: Network, sharing: int = 1) -> float:
        """Time of a step's exchange; ``sharing`` workers of a node use its network at once."""
        return (
            self.bytes_sent * 8 * sharing / network.bandwidth
            + self.local_bytes * 8 / network.local
            + self.rounds * network.latency
            + self.messages * MESSAGE_SECONDS
            + self.elements * ELEMENT_SECONDS
        )


def ring_bytes(size: float, workers: int) -> float:
    """Bytes that a worker sends in a ring all-reduce of ``size`` bytes."""
    return 2 * size * (workers - 1) / workers

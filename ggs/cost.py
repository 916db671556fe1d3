"""What an exchange costs: seconds from bytes, messages and elements. Imports nothing of torch.

The constants are rough orders of magnitude, not fitted to a recorded table yet. They matter where two
exchanges are compared, not as predictions of their own.
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

    def seconds(self, network: Network, sharing: int = 1) -> float:
        """Time of a step's exchange; ``sharing`` workers of a node use its network at once."""
        return (
            (self.bytes_sent + self.pairwise_bytes * (sharing - 1)) * 8 / network.bandwidth
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
        exposed: share of the time on the network that the computation does not hide.
    """

    per_parameter: float
    exposed: float


OVERHEADS = {
    "ggs": Overhead(1.2e-9, 1.0),
    "ddp": Overhead(0.0, 0.99),
    "ddp bf16": Overhead(0.4e-9, 0.98),
    "powersgd 1": Overhead(13.0e-9, 1.0),
    "powersgd 4": Overhead(27.0e-9, 1.0),
}
"""By method; must be what ``fit`` finds in docs/results/network.jsonl, once that is recorded."""

GPU_SPEEDUP = 40.0
"""How much faster a GPU's memory is than a CPU worker's, and so a method's arithmetic there."""


def fit(observations: list[tuple[float, float, float, float]]) -> Overhead:
    """The overhead that fits measured steps best, in relative terms.

    Args:
        observations: for each measurement the floor's seconds, the step's seconds, the number of
            parameters and the seconds that the bytes need on the wire (0 for an unlimited network).
    """

    def error(candidate: Overhead) -> float:
        return sum(
            ((floor + candidate.per_parameter * numel + candidate.exposed * wire) / step - 1) ** 2
            for floor, step, numel, wire in observations
        )

    # Least squares with weights 1 / step, both coefficients at least 0: two unknowns, solved by hand.
    pairs = [
        (numel / step, wire / step, (step - floor) / step)
        for floor, step, numel, wire in observations
    ]
    aa, ab, bb = (sum(p[i] * p[j] for p in pairs) for i, j in ((0, 0), (0, 1), (1, 1)))
    ay, by = (sum(p[i] * p[2] for p in pairs) for i in (0, 1))
    candidates = [Overhead(0.0, 0.0)]
    if aa:
        candidates.append(Overhead(max(ay / aa, 0.0), 0.0))
    if bb:
        candidates.append(Overhead(0.0, max(by / bb, 0.0)))
    determinant = aa * bb - ab * ab
    if determinant > 1e-12 * aa * bb:
        both = (ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant
        if min(both) >= 0:
            candidates.append(Overhead(*both))
    return min(candidates, key=error)

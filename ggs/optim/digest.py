"""The workers agree on a step before it changes anything: one small all-reduce, in which they also meet."""

import zlib
from dataclasses import dataclass

import torch

from ggs.dist.collectives import Collectives
from ggs.errors import MismatchError

_CHECKSUM_BYTES = 8
"""A checksum of the step's digest, and its complement."""
DECAYS = "learning rate times decoupled weight decay is"
"""What shrinks the weights on every worker alike, for a person."""


@dataclass(frozen=True)
class StepDigest:
    """What must be equal on all workers in a step, or the replicas would drift apart."""

    rates: tuple[float, ...]
    meaning: str
    """What the rates are, for a person: "learning rates are"."""
    density: float | None = None
    """The share of elements that is sent; None where all are."""
    call: str = "step()"
    """What the workers are in, for a person."""
    local_steps: int = 1
    """Steps of which the updates are exchanged; the rates are all theirs."""

    def __str__(self) -> str:
        parts = [] if self.call == "step()" else [f"in {self.call}"]
        parts += [] if self.local_steps == 1 else [f"{self.local_steps} local steps"]
        parts += [] if self.density is None else [f"density is {self.density}"]
        return ", ".join(parts + [f"{self.meaning} {list(self.rates)}"] * bool(self.rates))


def agreement_bytes(parameters: int, every: int = 1) -> int:
    """Bytes that the workers all-reduce to agree on an exchange: whether gradients were finite in each of
    its ``every`` steps, which of so many shared ``parameters`` had one, and where in which schedule they are.
    """
    return every + parameters + _CHECKSUM_BYTES


def agree(
    collectives: Collectives,
    device: torch.device,
    step: int,
    digest: StepDigest | None,
    votes: list[bool],
) -> list[bool]:
    """Which of ``votes`` hold on any worker; a collective.

    Args:
        step: how many this worker has taken.
        digest: of the step that this worker is in; None while it is in ``consolidated()``, which meets
            workers that are in a step in a collective of its shape, as in no other all can be told.
        votes: as many on every worker.

    Raises MismatchError, on every worker, unless all are in the same call with the same digest.
    """
    text = repr("consolidated()" if digest is None else (step, digest))
    checksum = list(zlib.crc32(text.encode()).to_bytes(4, "little"))
    # A byte and its complement: both maxima are the worker's own only where all have the same.
    row = [*votes, *checksum, *(255 - byte for byte in checksum)]
    maxima = collectives.all_reduce_max_(
        torch.tensor(row, dtype=torch.uint8, device=device)
    ).tolist()
    if maxima[-_CHECKSUM_BYTES:] != row[-_CHECKSUM_BYTES:]:
        raise MismatchError(_disagreement(collectives, device, step, digest))
    return [bool(maximum) for maximum in maxima[:-_CHECKSUM_BYTES]]


def _disagreement(
    collectives: Collectives, device: torch.device, step: int, digest: StepDigest | None
) -> str:
    """What the workers do not agree on; a collective, as every worker sees that they do not."""
    row = torch.tensor([digest is not None, step], dtype=torch.int64, device=device)
    stepping, steps = zip(*collectives.all_gather(row).tolist(), strict=True)
    if not all(stepping):
        return (
            f"rank {stepping.index(0)} is in consolidated() while rank {stepping.index(1)} is in "
            "step(): let every worker call step() and consolidated() equally often"
        )
    for rank, taken in enumerate(steps):
        if taken != steps[0]:
            return (
                f"rank {rank} has taken {taken} steps and rank 0 has taken {steps[0]}: load the "
                "checkpoint of the same step on every worker"
            )
    return (
        f"the workers do not agree on step {step}: here {digest}; schedule learning "
        "rate, weight decay and density alike on every worker, and let all make the same calls"
    )

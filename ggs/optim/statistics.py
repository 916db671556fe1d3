"""What one optimizer step sent, received and decided."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepStatistics:
    """The last step of one worker, or none yet. Bytes are what it put on, or took off, the network."""

    step: int = 0
    """Steps applied so far, this one included; a skipped step is not counted. With local steps, where a
    worker may leave out a step that others take, all are."""
    exchanged: bool = False
    """Whether the workers exchanged anything in this step: not in a skipped one, nor in a local one that
    others follow before the next exchange."""
    bytes_sent: int = 0
    """Bytes sent in this step, every header and flag counted; 0 in a local step."""
    bytes_received: int = 0
    """Bytes received in this step."""
    selected: int = 0
    """Elements of the update that this worker sent, sparse and dense ones together."""
    numel: int
    """Shared elements: all parameters except the local ones of batch-norm layers."""
    skipped: bool = False
    """True when a worker had a NaN or an infinite gradient, so that none took the step. With local steps:
    when this worker had one and left the step out."""
    consecutive_skips: int = 0
    """Steps skipped in a row, this one included. With local steps: those that any worker left out, up to
    the last exchange, which is where the others learn of it."""
    skipped_steps: int = 0
    """The same since the start."""

    @property
    def density(self) -> float:
        """Share of the shared elements that this worker sent, in [0, 1]."""
        return min(1.0, self.selected / self.numel) if self.numel else 0.0

    def __str__(self) -> str:
        return f"{repr(self)[:-1]}, density={self.density:.4g})"

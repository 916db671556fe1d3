"""What one optimizer step sent, received and decided."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepStatistics:
    """The last step of one worker. Bytes are what this worker put on, or took off, the network."""

    step: int
    """Steps applied so far, this one included; a skipped step is not counted."""
    bytes_sent: int
    """Bytes sent in this step, every header and flag counted."""
    bytes_received: int
    """Bytes received in this step."""
    selected: int
    """Elements of the update that this worker sent, sparse and dense ones together."""
    numel: int
    """Shared elements: all parameters except the local ones of batch-norm layers."""
    skipped: bool
    """True when a worker had a NaN or an infinite gradient, so that none took the step."""
    consecutive_skips: int
    """Steps skipped in a row, this one included."""
    skipped_steps: int
    """Steps skipped since the start."""

    @property
    def density(self) -> float:
        """Share of the shared elements that this worker sent, in [0, 1]."""
        return min(1.0, self.selected / self.numel) if self.numel else 0.0

    def __str__(self) -> str:
        return f"{repr(self)[:-1]}, density={self.density:.4g})"

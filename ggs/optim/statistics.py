"""What one optimizer step sent, received and decided."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class StepStatistics:
    """The last step of one worker, or none yet. Bytes are what it put on, or took off, the network."""

    step: int = 0
    """Steps applied so far, this one included; a skipped step is not counted."""
    bytes_sent: int = 0
    """Bytes sent in this step, every header and flag counted."""
    bytes_received: int = 0
    """Bytes received in this step."""
    selected: int = 0
    """Elements of the update that this worker sent, sparse and dense ones together."""
    numel: int
    """Shared elements: all parameters except the local ones of batch-norm layers."""
    skipped: bool = False
    """True when a worker had a NaN or an infinite gradient, so that none took the step."""
    consecutive_skips: int = 0
    """Steps skipped in a row, this one included."""
    skipped_steps: int = 0
    """Steps skipped since the start."""

    @property
    def density(self) -> float:
        """Share of the shared elements that this worker sent, in [0, 1]."""
        return min(1.0, self.selected / self.numel) if self.numel else 0.0

    def __str__(self) -> str:
        return f"{repr(self)[:-1]}, density={self.density:.4g})"

"""What a run records, line by line and at its end: the one schema of ``metrics.jsonl`` and ``summary.json``.

The fields stand in a file in this order. Whoever writes them fills in all; files of other versions may
lack what has a default here. What a file must hold, and within which limits, is checked where it is read
(``ggs.report``): JSON has neither NaN nor infinity, and a diverged training writes null for them.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

_BOUND = 1e100
"""Beyond it a figure is as good as infinite, and a chart's arithmetic would overflow."""

Count = Annotated[int, Field(ge=0, le=2**63)]
Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Figure = Annotated[float, AfterValidator(lambda value: value if abs(value) < _BOUND else math.nan)]
_null_is_nan = BeforeValidator(lambda value: math.nan if value is None else value)
Measured = Annotated[Figure, _null_is_nan]
IfMeasured = Annotated[Figure | None, _null_is_nan]
"""Null is NaN here too; only a field that is not there is None."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """Read strictly: what a field holds has exactly its type. What else stands in a file is passed over."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="ignore")


@dataclass(frozen=True, kw_only=True)
class TrainingRow(Record):
    """A "train" line of ``metrics.jsonl``: the steps since the one before. Bytes are of one worker."""

    kind: Literal["train"] = "train"
    step: Count
    epoch: Figure | None = None
    seconds: Seconds
    """Of training and evaluation so far."""
    loss: Measured
    """Mean of all workers and steps."""
    lr: Figure | None = None
    density: Figure | None = None
    """Of this step, as the schedule has it; with local steps, of the last exchange."""
    bytes_sent: Count | None = None
    """In this step; with local steps, in the last exchange, for each of its steps."""
    bytes_sent_total: Count | None = None
    samples_per_second: Figure | None = None
    skipped_steps: Count | None = None
    """So far."""
    residual_norm: Figure | None = None
    """None where nothing is kept back."""
    step_seconds: Annotated[dict[str, Seconds], Field(max_length=32)] | None = None
    """Seconds by phase of the step that ended with this line."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRow(Record):
    """An "evaluation" line of ``metrics.jsonl``."""

    kind: Literal["evaluation"] = "evaluation"
    step: Count
    epoch: Figure | None = None
    seconds: Seconds
    bytes_sent_total: Count | None = None
    top1: Measured
    """Percent."""
    loss: IfMeasured = None


@dataclass(frozen=True, kw_only=True)
class Summary(Record):
    """``summary.json``.

    ``density``, ``compression_ratio`` and the bytes per step are means over the steps after the density
    warm-up, or over all where the run ended within it; the ``_total`` ones are over all steps. What a
    resumed run did before its checkpoint is counted in all of them.
    """

    method: str | None = None
    model: str | None = None
    data: str | None = None
    optimizer: str | None = None
    top1: IfMeasured = None
    """Percent."""
    loss: IfMeasured = None
    top1_replicas_min: Figure | None = None
    """Percent: the worst worker with its own batch-norm layers; None where there are none."""
    top1_replicas_mean: Figure | None = None
    test_images: Count | None = None
    world_size: Count | None = None
    density: Figure | None = None
    """With local steps, of an exchange."""
    density_warmup_steps: Count | None = None
    momentum: Figure | None = None
    """The optimizer's, as it is set; None where it has none that is known."""
    momentum_taken: Figure | None = None
    """What became of it in the last step, where momentum follows the density."""
    every: Count | None = None
    """Steps from one exchange to the next; 1 where every step is one."""
    settled_steps: Count | None = None
    """Steps after the density warm-up, skipped ones not counted."""
    steps: Count | None = None
    resumed_from_step: Count | None = None
    """Where the last process began: at ``steps`` itself where the run had ended before."""
    epochs: Figure | None = None
    skipped_steps: Count | None = None
    seconds: Seconds | None = None
    checkpoint_seconds: Seconds | None = None
    """That training waited for checkpoints."""
    samples_per_second: Figure | None = None
    bytes_sent_per_step: Figure | None = None
    bytes_sent_per_exchange: Figure | None = None
    """The same where every step is an exchange."""
    dense_bytes_per_step: Count | None = None
    """That dense training of as many workers sends."""
    compression_ratio: Figure | None = None
    bytes_sent_total: Count | None = None
    compression_ratio_total: Figure | None = None
    batch_size: Count | None = None
    global_batch_size: Count | None = None
    seed: Count | None = None
    parameters: Count | None = None
    device: str | None = None
    ggs_version: str | None = None
    torch_version: str | None = None
    python_version: str | None = None

"""What a report reads of a run's files: every figure with its type, its limits, and whether it may lack.

Numbers that are not finite are what a diverged training leaves: they are read as NaN, whether a file has
NaN, an infinity, or the null that ``ggs train`` writes for them, since JSON has neither.
"""

import math
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from ggs.errors import DataError

_BOUND = 1e100
"""Beyond it a figure is as good as infinite, and a chart's arithmetic would overflow."""
_WAY_OUT = "repair the file, or leave this run out of the report"

_Count = Annotated[int, Field(ge=0, le=2**63)]
_Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
_Figure = Annotated[float, AfterValidator(lambda value: value if abs(value) < _BOUND else math.nan)]
_null_is_nan = BeforeValidator(lambda value: math.nan if value is None else value)
_Measured = Annotated[_Figure, _null_is_nan]
_IfMeasured = Annotated[_Figure | None, _null_is_nan]
"""Null is NaN here too; only a field that is not there is None."""


class _Record(BaseModel):
    # What else stands in a file is not this report's business; what it reads has exactly its type.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class Training(_Record):
    """A "train" line of ``metrics.jsonl``. Bytes are of one worker."""

    kind: Literal["train"]
    step: _Count
    seconds: _Seconds
    loss: _Measured
    bytes_sent: _Count | None = None
    bytes_sent_total: _Count | None = None
    samples_per_second: _Figure | None = None
    skipped_steps: _Count | None = None
    residual_norm: _Figure | None = None
    step_seconds: Annotated[dict[str, _Seconds], Field(max_length=32)] | None = None
    """Seconds by phase of the step that ended with this line."""


class Evaluation(_Record):
    """An "evaluation" line of ``metrics.jsonl``."""

    kind: Literal["evaluation"]
    step: _Count
    seconds: _Seconds
    top1: _Measured
    """Percent."""
    loss: _IfMeasured = None
    bytes_sent_total: _Count | None = None


class Settings(_Record):
    """What of ``config.yaml`` has a meaning for the report; the rest is only shown."""

    method: Annotated[str, Field(min_length=1)]
    optimizer: str | None = None
    model: str | None = None
    data: str | None = None


class Summary(_Record):
    """``summary.json``: of other versions of ggs, some figures may lack."""

    top1: _IfMeasured = None
    """Percent."""
    steps: _Count | None = None
    seconds: _Seconds | None = None
    samples_per_second: _Figure | None = None
    world_size: _Count | None = None
    density: _Figure | None = None
    bytes_sent_per_step: _Figure | None = None
    compression_ratio: _Figure | None = None
    compression_ratio_total: _Figure | None = None
    device: str | None = None
    ggs_version: str | None = None
    torch_version: str | None = None
    python_version: str | None = None


_LINE: TypeAdapter[Training | Evaluation] = TypeAdapter(
    Annotated[Training | Evaluation, Field(discriminator="kind")]
)


def read_line(text: bytes, place: str) -> Training | Evaluation:
    """One line of ``metrics.jsonl``. Raises DataError, which names ``place``."""
    try:
        return _LINE.validate_json(text)
    except ValidationError as error:
        raise _damaged(place, error) from None


def read_summary(text: bytes, place: str) -> Summary:
    """The content of ``summary.json``. Raises DataError, which names ``place``."""
    try:
        return Summary.model_validate_json(text)
    except ValidationError as error:
        raise _damaged(place, error) from None


def check_settings(values: dict[str, Any], place: str) -> None:
    """Raise DataError, which names ``place``, for settings that tell no run."""
    try:
        Settings.model_validate(values)
    except ValidationError as error:
        raise _damaged(place, error) from None


def _damaged(place: str, error: ValidationError) -> DataError:
    first = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(str(part) for part in first["loc"] if part not in ("train", "evaluation"))[:60]
    if first["type"] == "missing":
        problem = f"{name} is missing"
    elif first["type"].startswith("union_tag"):
        problem = "kind is neither train nor evaluation"
    elif name:
        problem = f"{name} is {_short(first['input'])}: {first['msg'].lower()}"
    else:
        problem = first["msg"][:1].lower() + first["msg"][1:]
    return DataError(f"{place} is damaged, or of another version of ggs: {problem}; {_WAY_OUT}")


def _short(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

"""Reading a run's files, which anybody may have written: every figure is what it should be, or one line.

Numbers that are not finite are what a diverged training leaves: they are read as NaN, whether a file has
NaN, an infinity, or the null that ``ggs train`` writes for them, since JSON has neither.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ggs.errors import DataError
from ggs.text import shorten
from ggs.train.records import EvaluationRow, Summary, TrainingRow

_WAY_OUT = "repair the file, or leave this run out of the report"


class _Settings(BaseModel):
    """What of ``config.yaml`` has a meaning for the report; the rest is only shown."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    method: Annotated[str, Field(min_length=1)]
    optimizer: str | None = None
    model: str | None = None
    data: str | None = None


_ROW: TypeAdapter[TrainingRow | EvaluationRow] = TypeAdapter(
    Annotated[TrainingRow | EvaluationRow, Field(discriminator="kind")]
)
_SUMMARY = TypeAdapter(Summary)


def read_row(text: bytes, where: str) -> TrainingRow | EvaluationRow:
    """One line of ``metrics.jsonl``. Raises DataError, which says ``where``."""
    try:
        return _ROW.validate_json(text)
    except ValidationError as error:
        raise _damaged(where, error) from None


def read_summary(text: bytes, where: str) -> Summary:
    """The content of ``summary.json``. Raises DataError, which says ``where``."""
    try:
        return _SUMMARY.validate_json(text)
    except ValidationError as error:
        raise _damaged(where, error) from None


def check_settings(values: dict[str, Any], where: str) -> None:
    """Raise DataError, which says ``where``, for settings that tell no run."""
    try:
        _Settings.model_validate(values)
    except ValidationError as error:
        raise _damaged(where, error) from None


def _damaged(where: str, error: ValidationError) -> DataError:
    first = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(str(part) for part in first["loc"] if part not in ("train", "evaluation"))[:60]
    if first["type"] == "missing":
        problem = f"{name} is missing"
    elif first["type"].startswith("union_tag"):
        problem = "kind is neither train nor evaluation"
    elif name:
        problem = f"{name} is {_shown(first['input'])}: {first['msg'].lower()}"
    else:
        problem = first["msg"][:1].lower() + first["msg"][1:]
    return DataError(f"{where} is damaged, or of another version of ggs: {problem}; {_WAY_OUT}")


def _shown(value: Any) -> str:
    return "null" if value is None else shorten(repr(value), 40)

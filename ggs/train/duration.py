"""Lengths of time in training, always with their unit: ``2 epochs``, ``500 steps``, ``10 minutes``."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from ggs.text import shorten

_PATTERN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(epoch|step|second|minute|hour)s?")
_SECONDS = {"seconds": 1, "minutes": 60, "hours": 3600}


@dataclass(frozen=True)
class Duration:
    """``amount`` epochs (passes over the training images) or optimizer steps; 0 is never or none."""

    amount: float
    unit: str = "epochs"

    def steps(self, steps_per_epoch: int) -> int:
        """The same length in whole steps; at least 1 unless the amount is 0."""
        if self.amount == 0:
            return 0
        steps = self.amount * steps_per_epoch if self.unit == "epochs" else self.amount
        return max(1, round(steps))

    def __str__(self) -> str:
        if self.amount == 0:
            return "0"
        return f"{self.amount:.12g} {self.unit if self.amount != 1 else self.unit[:-1]}"


@dataclass(frozen=True)
class Interval(Duration):
    """A Duration that may also be wall time, in seconds, minutes or hours."""

    @property
    def seconds(self) -> float | None:
        """The length in seconds of wall time; None where it is in steps or epochs."""
        return self.amount * _SECONDS[self.unit] if self.unit in _SECONDS else None


def _read(value: Any) -> Duration:
    duration = _parse(value, "'1 epoch' or '500 steps', or 0")
    if duration.unit in _SECONDS:
        raise ValueError(f"{str(duration)!r} is not allowed; give epochs or steps")
    return duration


def _read_interval(value: Any) -> Interval:
    duration = _parse(value, "'500 steps' or '10 minutes'")
    if duration.amount == 0:
        raise ValueError("0 is not allowed; give more than that")
    return Interval(duration.amount, duration.unit)


def _parse(value: Any, examples: str) -> Duration:
    if isinstance(value, Duration):
        return value
    text = str(value).strip().lower()
    if text in ("0", "0.0"):
        return Duration(0)
    match = _PATTERN.fullmatch(text)
    if not match or len(text) > 30:
        raise ValueError(
            f"{shorten(text, 30)!r} is not allowed; give a number and its unit, such as {examples}"
        )
    unit = match[2] + "s"
    amount = float(match[1])
    if unit == "steps" and amount != int(amount):
        raise ValueError(f"{text!r} is not allowed; give a whole number of steps")
    return Duration(amount, unit)


DurationField = Annotated[Duration, BeforeValidator(_read), PlainSerializer(str, return_type=str)]
IntervalField = Annotated[
    Interval, BeforeValidator(_read_interval), PlainSerializer(str, return_type=str)
]

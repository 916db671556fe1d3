"""Lengths of time in training, always with their unit: ``2 epochs``, ``500 steps``."""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

_PATTERN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(epochs?|steps?)")


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
        return f"{self.amount:g} {self.unit if self.amount != 1 else self.unit[:-1]}"


def _read(value: Any) -> Duration:
    if isinstance(value, Duration):
        return value
    text = str(value).strip().lower()
    if text in ("0", "0.0"):
        return Duration(0)
    match = _PATTERN.fullmatch(text)
    if not match or len(text) > 30:
        shown = text if len(text) <= 30 else text[:27] + "..."
        raise ValueError(
            f"{shown!r} is not allowed; give a number and its unit, such as '1 epoch' or "
            "'500 steps', or 0"
        )
    unit = match[2].rstrip("s") + "s"
    amount = float(match[1])
    if unit == "steps" and amount != int(amount):
        raise ValueError(f"{text!r} is not allowed; give a whole number of steps")
    return Duration(amount, unit)


DurationField = Annotated[Duration, BeforeValidator(_read), PlainSerializer(str, return_type=str)]

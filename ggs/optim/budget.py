"""A budget of bytes instead of a density: what a worker may send per step."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ggs.errors import ConfigurationError
from ggs.text import readable_bytes, shorten

Unit = Literal["B", "bits", "%"]
_UNITS: dict[str, tuple[Unit, float]] = {
    "b": ("B", 1.0),
    "byte": ("B", 1.0),
    "bytes": ("B", 1.0),
    "kb": ("B", 1e3),
    "mb": ("B", 1e6),
    "gb": ("B", 1e9),
    "bit": ("bits", 1.0),
    "bits": ("bits", 1.0),
    "%": ("%", 1.0),
}
_FORMATS = ("sign", "int4", "int8", "bf16", "fp32")
"""Coarsest first. Of as many bytes, more elements of a coarser format are worth more (docs/results.md)."""


@dataclass(frozen=True)
class Budget:
    """``amount`` bytes, bits per trained parameter, or percent of what a dense ring all-reduce sends."""

    amount: float
    unit: Unit

    @classmethod
    def parse(cls, text: str | float) -> "Budget":
        """A number of bytes, or text: "2 kB", "0.1 bits" (per parameter), "0.4 %" (of dense training).

        Raises ConfigurationError for anything else, and for nothing to send.
        """
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e-?\d+)?)\s*([a-z%]*)\s*", str(text).lower())
        unit = _UNITS.get(match[2] or "b") if match else None
        if not match or unit is None or not 0 < float(match[1]) * unit[1] < 1e15:
            raise ConfigurationError(
                f"budget is {shorten(str(text), 40)!r}: give bytes per step as '2 kB', bits per parameter as "
                "'0.1 bits', or a share of what dense training sends as '0.4 %'"
            )
        return cls(float(match[1]) * unit[1], unit[0])

    def bytes_per_step(self, numel: int, dense_bytes: float) -> float:
        """What a worker may send, of a model of ``numel`` trained parameters for which dense training sends
        ``dense_bytes``.
        """
        if self.unit == "bits":
            return self.amount * numel / 8
        return self.amount / 100 * dense_bytes if self.unit == "%" else self.amount


def fit(
    limit: float, bytes_at: Callable[[str, float], int], numel: int, values: str | None
) -> tuple[str, float]:
    """The format of values and the density for which a worker sends at most ``limit`` bytes an exchange.

    Args:
        limit: bytes.
        bytes_at: what is sent in a format at a density.
        numel: elements of which a share is selected.
        values: the format; None for the finest in which ``limit`` pays for all elements, and for
            "sign" where it does for none.

    Raises ConfigurationError where not even a single element fits.
    """
    whole = [name for name in _FORMATS if bytes_at(name, 1.0) <= limit]
    if values is None and whole:
        return whole[-1], 1.0
    values = values or _FORMATS[0]
    if bytes_at(values, 1.0) <= limit:
        return values, 1.0
    least, most = 1, numel
    if (needed := bytes_at(values, least / numel)) > limit:
        raise ConfigurationError(
            f"budget of {readable_bytes(limit)}: the smallest exchange of this model takes "
            f"{readable_bytes(needed)} a worker; give at least that, or exchange less often (every)"
        )
    while most - least > 1:  # what is sent grows with the count, but for a few bytes of coding
        middle = (least + most) // 2
        if bytes_at(values, middle / numel) <= limit:
            least = middle
        else:
            most = middle
    return values, least / numel

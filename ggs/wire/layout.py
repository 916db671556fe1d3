"""Sizes and places inside a message: what `ggs.wire` documents, as numbers."""

from dataclasses import dataclass
from functools import lru_cache

import torch

from ggs.errors import ConfigurationError

MAGIC = b"GS"
VERSION = 1
HEADER_BYTES = 24
CHECKSUM_AT = 16
"""First byte of the checksum, which reaches to the end of the header."""
BLOCK = 256
"""Values that share one scale."""
MOST_MEDIANS = 2.0
"""The largest scale of `sign`, in medians of its block: what keeps one outlier from speaking for all."""
MAX_NUMEL = 2**48 - 1


@dataclass(frozen=True)
class ValuesFormat:
    """How values travel."""

    code: int
    """Number in the header."""
    bits: int
    """Bits per value, without scales."""
    scales: int
    """bfloat16 scales per block of 256 values."""
    dtype: torch.dtype
    """What the receiver decodes to."""


FORMATS = {
    "fp64": ValuesFormat(1, 64, 0, torch.float64),
    "fp32": ValuesFormat(2, 32, 0, torch.float32),
    "bf16": ValuesFormat(3, 16, 0, torch.float32),
    "int8": ValuesFormat(4, 8, 2, torch.float32),
    "int4": ValuesFormat(5, 4, 2, torch.float32),
    "sign": ValuesFormat(6, 1, 1, torch.float32),
}


@dataclass(frozen=True)
class Layout:
    """Where each section of a message begins, in bytes; a section ends where the next begins."""

    numel: int
    count: int
    format: ValuesFormat
    low_bits: int
    """Width l of the Elias-Fano low parts; 0 where indices are a bitmap or are not sent."""
    high_bits: int
    """Length of the Elias-Fano high part, or of the bitmap, in bits; 0 where nothing is sent."""
    values: int
    scales: int
    lows: int
    highs: int
    size: int


def check_format(name: str) -> ValuesFormat:
    """The format called `name`, or ConfigurationError."""
    try:
        return FORMATS[name]
    except KeyError:
        known = ", ".join(FORMATS)
        raise ConfigurationError(f"values format {name!r} is unknown: use one of {known}") from None


def _padded(bits: int, unit: int) -> int:
    """Bytes that hold `bits`, as whole units of `unit` bytes."""
    return -(-bits // (8 * unit)) * unit


def _index_bits(numel: int, count: int) -> tuple[int, int]:
    """(low, high) bits of the shorter of Elias-Fano and bitmap; ties go to the smaller low part."""
    if count in (0, numel):
        return 0, 0
    # The best width is next to log2(n / k); three candidates always hold it.
    guess = max(1, (numel // count).bit_length() - 1)
    widths = range(max(1, guess - 1), guess + 2)
    coded = [(count * (low + 1) + ((numel - 1) >> low), low) for low in widths]
    _, low = min([(numel, 0), *coded])
    return (low, count + ((numel - 1) >> low)) if low else (0, numel)


@lru_cache(maxsize=1024)
def layout_of(numel: int, count: int, values: str) -> Layout:
    """The one layout of a message with `count` of `numel` elements in the format `values`."""
    form = check_format(values)
    if not 0 <= count <= numel <= MAX_NUMEL:
        raise ConfigurationError(
            f"a message cannot hold {count} of {numel} elements: 0 <= count <= numel < 2^48"
        )
    low, high = _index_bits(numel, count)
    scales = HEADER_BYTES + _padded(count * form.bits, 4)
    lows = scales + _padded(-(-count // BLOCK) * form.scales * 16, 4)
    highs = lows + _padded(count * low, 4)
    size = _padded(8 * (highs + _padded(high, 4)), 8)
    return Layout(numel, count, form, low, high, HEADER_BYTES, scales, lows, highs, size)

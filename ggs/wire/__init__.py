"""Messages: k of n elements as one flat uint8 buffer whose size depends on (n, k, format) alone.

Every number is little-endian, and bit 0 of a byte is its lowest. A message is

    byte 0      "GS"
    byte 2      version of this format: 1
    byte 3      format of the values: 1 fp64, 2 fp32, 3 bf16, 4 int8, 5 int4, 6 sign
    byte 4      n, 48 bits
    byte 10     k, 48 bits
    byte 16     checksum, 64 bits
    byte 24     values, in the order of their indices
    then        scales: for each block of 256 values, bfloat16 numbers >= 0
    then        low parts of the indices
    then        high parts of the indices

Each section is filled up with zero bits to a multiple of 4 bytes, the whole to one of 8.

Values. fp64, fp32: as they are. bf16: rounded to nearest, ties to even, and limited to the largest
finite number. int8, int4: a level in the low 7 (3) bits and the sign in the top one; int4 puts the
first of two values in the low half of a byte. A block has two scales, `low` (its least magnitude,
rounded down) and `high` (its largest, rounded up), and level j of 0 ... L = 127 (7) means the
magnitude low + (high - low) (j / L)^2, computed in float32 in this order, its last 8 bits cleared.
Selected elements are all larger than a threshold and most lie near it, so levels from zero up would
be wasted; the squares put most of them where most elements are. sign: one bit a value, 1 for
negative; the block's scale is its mean magnitude, and at most twice the lower median of its magnitudes
that are not zero: a few outliers stay in the residual rather than speak for the others.

Indices. k = n and k = 0: nothing. Otherwise Elias-Fano with l low bits: the low parts are k numbers
of l bits, one after the other; the high part has bit (index_i >> l) + i set for each i and
k + ((n - 1) >> l) bits in all. l is whichever of floor(log2(n / k)) - 1, + 0, + 1, if positive,
gives the shortest code, the smallest of equals; and where a bitmap (bit index_i set, n bits) is no
longer than that, it is sent as the high part instead. Sets of k of n have log2 C(n, k) bits of
entropy; this is within 0.56 bits an index of it.

Checksum: the sum modulo 2^64, over all 32-bit words w_i but the checksum's own, of w_i * m_i with
m_i = mix(i) | 1, where mix(i) is x = (i + 1) * 0x9E3779B97F4A7C15; x ^= x >> 32;
x *= 0xBF58476D1CE4E5B9; x ^= x >> 32. Any change of a single word changes it; any other damage goes
unseen with a probability of about 2^-32 at most.

The decoder accepts precisely what an encoder can write. Reference for the index code: P. Elias,
Efficient storage and retrieval by content and address of static files, J. ACM 21 (1974).
"""

from types import ModuleType

import torch
from torch import Tensor

from ggs.errors import WireError
from ggs.wire import torch_codec
from ggs.wire.layout import (
    CHECKSUM_AT,
    FORMATS,
    HEADER_BYTES,
    MAGIC,
    VERSION,
    Layout,
    check_format,
    layout_of,
)

__all__ = ["VALUES_FORMATS", "check_format", "decode", "encode", "message_size"]

VALUES_FORMATS = tuple(FORMATS)
"""Names of the formats of values, finest first."""


def message_size(numel: int, count: int, values_format: str) -> int:
    """Bytes of a message with `count` of `numel` elements, a multiple of 8."""
    return layout_of(numel, count, values_format).size


def _header(layout: Layout) -> bytes:
    numbers = layout.numel.to_bytes(6, "little") + layout.count.to_bytes(6, "little")
    return MAGIC + bytes([VERSION, layout.format.code]) + numbers


def _codec(device: torch.device) -> ModuleType:
    if device.type != "cpu":
        return torch_codec
    from ggs.wire import cpu_codec  # numba takes half a second to import

    return cpu_codec


def encode(
    indices: Tensor,
    values: Tensor,
    numel: int,
    values_format: str,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Codes selected elements as one message.

    Args:
        indices: (k,) int64, ascending, each in [0, numel).
        values: (k,) float32 or float64, finite, on the same device.
        numel: n, the length of the vector that the indices point into.
        values_format: one of `VALUES_FORMATS`.
        out: where to write, uint8 of `message_size(numel, k, values_format)` bytes, contiguous and
            aligned to 8 bytes; a new buffer by default.

    Returns:
        The buffer, and what the receiver will decode: (k,) float32 (float64 for fp64). The caller
        keeps `values - sent`, which float64 holds exactly for float32 values that are no more than
            2^29 times smaller or larger than what was sent for them.
    """
    layout = layout_of(numel, indices.numel(), values_format)
    buffer = values.new_empty(layout.size, dtype=torch.uint8) if out is None else out
    assert buffer.numel() == layout.size
    assert buffer.data_ptr() % 8 == 0
    codec = _codec(buffer.device)
    codec.begin(buffer, _header(layout))
    sent: Tensor = codec.write_values(buffer, layout, values.detach())
    codec.write_indices(buffer, layout, indices)
    buffer[CHECKSUM_AT:HEADER_BYTES] = codec.checksum(buffer).view(torch.uint8)
    return buffer, sent


def _check(buffer: Tensor, layout: Layout, codec: ModuleType) -> None:
    """Raises WireError unless header and checksum are those of a whole message like `layout`."""
    total = codec.checksum(buffer).view(torch.uint8)
    head = bytes(torch.cat([buffer[:HEADER_BYTES], total]).tolist())
    if head[:2] != MAGIC:
        raise WireError(f"not a GGS message: it begins with {head[:2]!r}, not {MAGIC!r}")
    if head[2] != VERSION:
        raise WireError(
            f"the message has format version {head[2]}, this GGS reads {VERSION}: "
            "run the same version of GGS on all workers"
        )
    if head[CHECKSUM_AT:HEADER_BYTES] != head[HEADER_BYTES:]:
        raise WireError(f"the message of {buffer.numel()} bytes was damaged: its checksum is wrong")
    if head[:CHECKSUM_AT] != _header(layout):
        names = {form.code: name for name, form in FORMATS.items()}
        numel, count = (int.from_bytes(head[at : at + 6], "little") for at in (4, 10))
        raise WireError(
            f"the message holds {count} of {numel} elements as {names.get(head[3], head[3])}, not "
            f"{layout.count} of {layout.numel} as {names[layout.format.code]}: "
            "start all workers with the same model and settings"
        )


def decode(buffer: Tensor, numel: int, count: int, values_format: str) -> tuple[Tensor, Tensor]:
    """Reads a message that `encode` wrote for the same `numel`, `count` and `values_format`.

    Args:
        buffer: uint8 of `message_size(numel, count, values_format)` bytes.

    Returns:
        Indices (count,) int64, ascending, and values (count,) float32 (float64 for fp64).

    Raises:
        WireError: the message is damaged, or was written for other arguments.
    """
    layout = layout_of(numel, count, values_format)
    if buffer.dtype != torch.uint8 or buffer.dim() != 1 or buffer.numel() != layout.size:
        raise WireError(
            f"{count} of {numel} elements as {values_format} take {layout.size} bytes; "
            f"the message is {tuple(buffer.shape)} of {buffer.dtype}"
        )
    if not buffer.is_contiguous() or buffer.data_ptr() % 8:
        buffer = buffer.clone(memory_format=torch.contiguous_format)
    codec = _codec(buffer.device)
    _check(buffer, layout, codec)
    indices: Tensor | None = codec.read_indices(buffer, layout)
    values: Tensor | None = codec.read_values(buffer, layout)
    if indices is None or values is None:
        what = "indices" if indices is None else "values"
        raise WireError(f"the {what} of the message of {layout.size} bytes are not what GGS writes")
    return indices, values

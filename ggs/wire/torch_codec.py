"""The message codec in vectorised torch: any device, and the plain twin of the compiled one.

Both write the same bytes. Every float operation here is one IEEE operation on float32 (float64
for the mean of `sign`) in a fixed order, with no fused multiply-add, and divisors are tensors on the
device, so devices agree bit by bit.
"""

import torch
from torch import Tensor

from ggs.wire.layout import BLOCK, CHECKSUM_AT, HEADER_BYTES, MOST_MEDIANS, Layout

BF16_MAX = float(torch.finfo(torch.bfloat16).max)
FP32_MAX = float(torch.finfo(torch.float32).max)
MULTIPLIER_A = 0x9E3779B97F4A7C15 - 2**64  # odd, as signed 64-bit
MULTIPLIER_B = 0xBF58476D1CE4E5B9 - 2**64
_CHUNK = 1 << 22


def _pack_bits(flags: Tensor) -> Tensor:
    """(m,) of 0 and 1 -> (ceil(m / 8),) uint8, first flag in the lowest bit."""
    flags = torch.nn.functional.pad(flags.to(torch.uint8), (0, -flags.numel() % 8)).view(-1, 8)
    packed = flags[:, 0].clone()
    for bit in range(1, 8):
        packed |= flags[:, bit] << bit
    return packed


def _unpack_bits(packed: Tensor, length: int) -> Tensor:
    """Inverse of `_pack_bits`: the first `length` flags as uint8."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> shifts) & 1).view(-1)[:length]


def _padding_is_zero(packed: Tensor, length: int) -> bool:
    whole, rest = divmod(length, 8)
    tail = packed[whole:]
    if not tail.numel():
        return True
    return bool(int(tail[0]) >> rest == 0 and not tail[1:].any())


def begin(buffer: Tensor, header: bytes) -> None:
    """Writes the `header` without its checksum, and zeros after it."""
    buffer[HEADER_BYTES:].zero_()
    buffer[:CHECKSUM_AT] = torch.frombuffer(bytearray(header), dtype=torch.uint8)


def write_indices(buffer: Tensor, layout: Layout, indices: Tensor) -> None:
    """Codes ascending int64 `indices` (k,) into the low and high sections of `buffer`."""
    if not layout.high_bits:
        return
    low, positions = layout.low_bits, indices
    if low:
        shifts = torch.arange(low, device=indices.device)
        packed = _pack_bits(((indices[:, None] >> shifts) & 1).view(-1))
        buffer[layout.lows : layout.lows + packed.numel()] = packed
        positions = (indices >> low) + torch.arange(layout.count, device=indices.device)
    flags = torch.zeros(layout.high_bits, dtype=torch.uint8, device=indices.device)
    flags[positions] = 1
    packed = _pack_bits(flags)
    buffer[layout.highs : layout.highs + packed.numel()] = packed


def read_indices(buffer: Tensor, layout: Layout) -> Tensor | None:
    """Ascending int64 indices (k,), or None where the sections are not what an encoder writes."""
    if not layout.high_bits:
        return torch.arange(layout.count, device=buffer.device)
    low, highs = layout.low_bits, buffer[layout.highs : layout.size]
    positions = _unpack_bits(highs, layout.high_bits).nonzero().view(-1)
    if positions.numel() != layout.count or not _padding_is_zero(highs, layout.high_bits):
        return None
    if not low:
        return positions
    packed = buffer[layout.lows : layout.highs]
    if not _padding_is_zero(packed, layout.count * low):
        return None
    bits = _unpack_bits(packed, layout.count * low).view(-1, low).to(torch.int64)
    lows = (bits << torch.arange(low, device=buffer.device)).sum(1)
    highs = positions - torch.arange(layout.count, device=buffer.device)
    indices = (highs << low) | lows
    if int(indices[-1]) >= layout.numel or not bool((indices[1:] > indices[:-1]).all()):
        return None
    return indices


def _blocks(values: Tensor) -> Tensor:
    """(k,) -> (ceil(k / 256), 256), the last block filled up with its last value."""
    short = -values.numel() % BLOCK
    return torch.cat([values, values[-1:].expand(short)]).view(-1, BLOCK)


def _levels(low: Tensor, high: Tensor, level: Tensor, top: int) -> Tensor:
    """Magnitude of `level`: low + (high - low) (level / top)^2 with 16 significant bits."""
    # CUDA multiplies by the reciprocal of a number, and of a tensor on the CPU; that rounds twice.
    whole = torch.full((), float(top * top), device=level.device)
    share = (level * level).to(torch.float32) / whole
    exact = low + (high - low) * share
    # 16 bits, so that value - sent needs no more than float32's 24.
    return (exact.view(torch.int32) & -256).view(torch.float32)


def _scales_to_float(scales: Tensor) -> Tensor:
    """uint8 pairs of bfloat16 bits -> float32."""
    return scales.view(torch.bfloat16).to(torch.float32)


def _write_companded(buffer: Tensor, layout: Layout, values: Tensor) -> Tensor:
    """`int8` and `int4`: a sign and a level between the block's least and largest magnitude."""
    blocks = _blocks(values)
    magnitude = blocks.abs()
    low_bits = magnitude.amin(1).view(torch.int32) >> 16
    high_bits = ((magnitude.amax(1).view(torch.int32) + 0xFFFF) >> 16).clamp_(max=0x7F7F)
    scales = torch.stack([low_bits, high_bits], 1).to(torch.int16).view(-1).view(torch.uint8)
    buffer[layout.scales : layout.scales + scales.numel()] = scales
    low, high = _scales_to_float(scales).view(-1, 2, 1).unbind(1)
    top = 2 ** (layout.format.bits - 1) - 1
    span = high - low
    share = torch.where(span > 0, (magnitude - low) / span, 0.0).clamp_(0.0, 1.0)
    level = (share.sqrt() * float(top)).to(torch.int64).clamp_(max=top - 1)
    below, above = _levels(low, high, level, top), _levels(low, high, level + 1, top)
    level += (magnitude - below > above - magnitude).to(torch.int64)
    negative = blocks < 0
    sent = _levels(low, high, level, top)
    sent = torch.where(negative, -sent, sent).view(-1)[: layout.count]
    codes = (
        (level | (negative.to(torch.int64) * (top + 1))).to(torch.uint8).view(-1)[: layout.count]
    )
    if layout.format.bits == 4:
        pairs = torch.nn.functional.pad(codes, (0, codes.numel() % 2)).view(-1, 2)
        codes = pairs[:, 0] | (pairs[:, 1] << 4)
    buffer[layout.values : layout.values + codes.numel()] = codes
    return sent


def _read_companded(buffer: Tensor, layout: Layout) -> Tensor | None:
    codes = buffer[layout.values : layout.scales]
    used = -(-layout.count * layout.format.bits // 8)
    if layout.format.bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], 1).view(-1)
    if codes[layout.count :].any() or buffer[layout.values + used : layout.scales].any():
        return None
    blocks = -(-layout.count // BLOCK)
    scales = buffer[layout.scales : layout.scales + 4 * blocks]
    low, high = _scales_to_float(scales).view(-1, 2, 1).unbind(1)
    if not bool((low.isfinite() & high.isfinite() & (low <= high)).all()):
        return None
    if bool((scales[1::2] >> 7).any()):
        return None
    top = 2 ** (layout.format.bits - 1) - 1
    codes = torch.nn.functional.pad(codes[: layout.count], (0, -layout.count % BLOCK))
    codes = codes.view(-1, BLOCK).to(torch.int64)
    sent = _levels(low, high, codes & top, top)
    return torch.where(codes > top, -sent, sent).view(-1)[: layout.count]


def _median_of_nonzero(magnitudes: Tensor) -> Tensor:
    """(b, 256) of magnitudes -> (b, 1), the lower median of those above zero; 0 where there is none."""
    ascending = magnitudes.sort(1).values
    nonzero = (ascending > 0).sum(1, keepdim=True)
    lower = ascending.shape[1] - nonzero + (nonzero - 1).clamp_(min=0) // 2
    return ascending.gather(1, lower.clamp_(max=ascending.shape[1] - 1))


def _write_sign(buffer: Tensor, layout: Layout, values: Tensor) -> Tensor:
    """`sign`: one bit a value, and the block's mean magnitude or what outliers leave of it."""
    short = -layout.count % BLOCK
    sums = torch.nn.functional.pad(values.abs().to(torch.float64), (0, short)).view(-1, BLOCK)
    most = MOST_MEDIANS * _median_of_nonzero(sums)
    # Halving fixes the order of the additions, which decides the last bit of the sum.
    while sums.shape[1] > 1:
        half = sums.shape[1] // 2
        sums = sums[:, :half] + sums[:, half:]
    sizes = torch.full_like(sums, BLOCK)
    sizes[-1] = BLOCK - short
    scale = torch.minimum(sums / sizes, most)
    mean = scale.to(torch.float32).clamp_(max=BF16_MAX).view(-1).to(torch.bfloat16)
    scales = mean.view(torch.uint8)
    buffer[layout.scales : layout.scales + scales.numel()] = scales
    negative = values < 0
    packed = _pack_bits(negative)
    buffer[layout.values : layout.values + packed.numel()] = packed
    magnitude = mean.to(torch.float32).repeat_interleave(BLOCK)[: layout.count]
    return torch.where(negative, -magnitude, magnitude)


def _read_sign(buffer: Tensor, layout: Layout) -> Tensor | None:
    packed = buffer[layout.values : layout.scales]
    blocks = -(-layout.count // BLOCK)
    scales = buffer[layout.scales : layout.scales + 2 * blocks]
    mean = _scales_to_float(scales)
    bad = not bool(mean.isfinite().all()) or bool((scales[1::2] >> 7).any())
    if bad or not _padding_is_zero(packed, layout.count):
        return None
    if buffer[layout.scales + 2 * blocks : layout.lows].any():
        return None
    negative = _unpack_bits(packed, layout.count).to(torch.bool)
    magnitude = mean.repeat_interleave(BLOCK)[: layout.count]
    return torch.where(negative, -magnitude, magnitude)


def write_values(buffer: Tensor, layout: Layout, values: Tensor) -> Tensor:
    """Codes `values` (k,) into `buffer` and returns what the receiver will decode, (k,)."""
    if not layout.count:
        return values.to(layout.format.dtype)
    if layout.format.bits == 64:
        sent = values.to(torch.float64, copy=True)
        raw = sent
    else:
        sent = values.clamp(-FP32_MAX, FP32_MAX).to(torch.float32)
        raw = sent
    if layout.format.bits == 16:
        raw = sent.clamp(-BF16_MAX, BF16_MAX).to(torch.bfloat16)
        sent = raw.to(torch.float32)
    elif layout.format.bits in (4, 8):
        return _write_companded(buffer, layout, sent)
    elif layout.format.bits == 1:
        return _write_sign(buffer, layout, sent)
    data = raw.view(torch.uint8)
    buffer[layout.values : layout.values + data.numel()] = data
    return sent


def read_values(buffer: Tensor, layout: Layout) -> Tensor | None:
    """Values (k,), or None where the sections are not what an encoder writes."""
    if not layout.count:
        return torch.empty(0, dtype=layout.format.dtype, device=buffer.device)
    if layout.format.bits in (4, 8):
        return _read_companded(buffer, layout)
    if layout.format.bits == 1:
        return _read_sign(buffer, layout)
    used = layout.values + layout.count * layout.format.bits // 8
    if buffer[used : layout.scales].any():
        return None
    raw = torch.bfloat16 if layout.format.bits == 16 else layout.format.dtype
    values = buffer[layout.values : used].view(raw).to(layout.format.dtype, copy=True)
    return values if bool(values.isfinite().all()) else None


def checksum(buffer: Tensor) -> Tensor:
    """64-bit sum over the 32-bit words of `buffer`, as an int64 tensor (1,) on its device."""
    words = buffer.view(torch.int32)
    total = torch.zeros(1, dtype=torch.int64, device=buffer.device)
    for start in range(0, words.numel(), _CHUNK):
        part = words[start : start + _CHUNK].to(torch.int64) & 0xFFFFFFFF
        key = torch.arange(start + 1, start + 1 + part.numel(), device=buffer.device)
        key *= MULTIPLIER_A
        key ^= (key >> 32) & 0xFFFFFFFF
        key *= MULTIPLIER_B
        key ^= (key >> 32) & 0xFFFFFFFF
        key |= 1
        if start == 0:
            key[CHECKSUM_AT // 4 : HEADER_BYTES // 4] = 0
        total += (part * key).sum()
    return total

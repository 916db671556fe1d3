"""Compiled loops of `ggs.wire.cpu_codec`: the format that `ggs.wire` describes, word by word.

Floats are float32 throughout, one rounding at a time, as in `ggs.wire.torch_codec`: the bytes must agree.
Kernels work on the range first ... last - 1 of elements, or of 32-bit words.
"""

from typing import Any

import numpy as np

from ggs.compiled import compiled
from ggs.wire.layout import BLOCK, MOST_MEDIANS

Array = Any  # numpy arrays; numba's types are beyond mypy

FP32_MAX = np.finfo(np.float32).max
BF16_TOP = 0x7F7F  # bits of the largest finite bfloat16
MULTIPLIER_A = np.uint64(0x9E3779B97F4A7C15)
MULTIPLIER_B = np.uint64(0xBF58476D1CE4E5B9)


@compiled
def _position(indices: Array, i: int, low: int, spread: int) -> int:
    return int((indices[i] >> low) + i * spread)


@compiled
def write_highs(words: Array, indices: Array, low: int, spread: int, first: int, last: int) -> None:
    """Sets bit (index_i >> low) + i * spread for each i; the words are zero before."""
    left, right = 0, len(indices)
    while left < right:  # the first element whose bit is in word `first` or later
        middle = (left + right) // 2
        if _position(indices, middle, low, spread) < first * 32:
            left = middle + 1
        else:
            right = middle
    for i in range(left, len(indices)):
        at = _position(indices, i, low, spread)
        if at >= last * 32:
            break
        words[at >> 5] |= np.uint32(1) << np.uint32(at & 31)


@compiled
def write_lows(words: Array, indices: Array, low: int, first: int, last: int) -> None:
    """Packs the `low` lowest bits of each index; `first` is a multiple of 32."""
    mask = (np.int64(1) << low) - 1
    word = first * low // 32
    filled, held = 0, np.uint64(0)
    for i in range(first, last):
        value = np.uint64(indices[i] & mask)
        rest = low
        while rest > 0:
            part = min(rest, 32)
            held |= (value & np.uint64((np.int64(1) << part) - 1)) << np.uint64(filled)
            value >>= np.uint64(part)
            filled += part
            rest -= part
            if filled >= 32:
                words[word] = np.uint32(held & np.uint64(0xFFFFFFFF))
                word += 1
                held >>= np.uint64(32)
                filled -= 32
    if filled:
        words[word] = np.uint32(held)


@compiled
def _ones(word: int) -> int:
    """Set bits of a 32-bit word."""
    x = np.uint64(word)
    x -= (x >> np.uint64(1)) & np.uint64(0x55555555)
    x = (x & np.uint64(0x33333333)) + ((x >> np.uint64(2)) & np.uint64(0x33333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F)
    return int((x * np.uint64(0x01010101) >> np.uint64(24)) & np.uint64(0xFF))


@compiled
def count_ones(words: Array, first: int, last: int) -> int:
    """Set bits."""
    total = 0
    for w in range(first, last):
        total += _ones(words[w])
    return total


@compiled
def tail(words: Array, bits: int) -> bool:
    """Whether anything is set after the first `bits` bits."""
    for w in range(bits // 32, len(words)):
        used = bits - 32 * w
        if np.uint64(words[w]) >> np.uint64(max(used, 0)):
            return True
    return False


@compiled
def read_indices(
    highs: Array,
    lows: Array,
    low: int,
    spread: int,
    indices: Array,
    i: int,
    first: int,
    last: int,
) -> None:
    """Decodes the indices whose bits are in these words of `highs`; the first one is number `i`."""
    mask = (np.uint64(1) << np.uint64(low)) - np.uint64(1)
    for w in range(first, last):
        word = highs[w]
        while word:
            below = np.uint32(~word & (word - np.uint32(1)))  # ones up to the lowest set bit
            at = 32 * w + _ones(below)
            word &= word - np.uint32(1)
            value, done = np.uint64(0), 0
            while done < low:
                bit = i * low + done
                piece = np.uint64(lows[bit >> 5]) >> np.uint64(bit & 31)
                value |= piece << np.uint64(done)
                done += 32 - (bit & 31)
            indices[i] = ((at - i * spread) << low) | np.int64(value & mask)
            i += 1


@compiled
def ascending(indices: Array, numel: int, first: int, last: int) -> bool:
    """Whether these, and the step to the first of them, ascend strictly below `numel`."""
    good = True
    for i in range(max(first, 1), last):
        good &= indices[i] > indices[i - 1]
    return good and (last == 0 or indices[last - 1] < numel)


@compiled
def _to_float32(value: float) -> Any:
    return np.float32(min(max(value, -FP32_MAX), FP32_MAX))


@compiled
def write_floats(source: Array, sent: Array, raw: Array, first: int, last: int) -> None:
    """fp32 and fp64."""
    for i in range(first, last):
        if sent.itemsize == 4:
            sent[i] = _to_float32(source[i])
        else:
            sent[i] = source[i]
        raw[i] = sent[i]


@compiled
def read_floats(raw: Array, sent: Array, first: int, last: int) -> bool:
    """fp32 and fp64; False if one is not finite."""
    good = True
    for i in range(first, last):
        sent[i] = raw[i]
        good &= np.isfinite(raw[i])
    return good


@compiled
def write_bf16(source: Array, sent: Array, raw: Array, first: int, last: int) -> None:
    """bf16, to nearest, ties to even, limited to finite numbers."""
    for i in range(first, last):
        sent[i] = _to_float32(source[i])
    bits = sent.view(np.int32)
    for i in range(first, last):
        magnitude = bits[i] & 0x7FFFFFFF
        code = min((magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16, BF16_TOP)
        code |= (bits[i] >> 16) & 0x8000
        raw[i] = code
        bits[i] = code << 16


@compiled
def read_bf16(raw: Array, sent: Array, first: int, last: int) -> bool:
    """bf16; False if one is not finite."""
    good = True
    bits = sent.view(np.uint32)
    for i in range(first, last):
        bits[i] = np.uint32(raw[i]) << np.uint32(16)
        good &= (raw[i] & 0x7FFF) <= BF16_TOP
    return good


@compiled
def _levels(low: float, high: float, top: int, table: Array) -> None:
    """Magnitudes of the levels 0 ... top: low + (high - low) (level / top)^2, 16 bits each."""
    for level in range(top + 1):
        share = np.float32(level * level) / np.float32(top * top)
        table[level] = np.float32(low + np.float32(np.float32(high - low) * share))
    bits = table.view(np.int32)
    for level in range(top + 1):
        bits[level] &= -256


@compiled
def _read_scale(code: int, scratch: Array) -> Any:
    scratch.view(np.uint32)[0] = np.uint32(code) << np.uint32(16)
    return scratch[0]


@compiled
def write_companded(
    source: Array,
    sent: Array,
    codes: Array,
    scales: Array,
    width: int,
    first: int,
    last: int,
) -> None:
    """int8 and int4; `codes` is zero before."""
    top = (1 << (width - 1)) - 1
    table, scratch = np.empty(top + 1, np.float32), np.empty(1, np.float32)
    magnitudes = np.empty(BLOCK, np.float32)
    for start in range(first, last, BLOCK):
        stop = min(start + BLOCK, last)
        for i in range(start, stop):
            magnitudes[i - start] = abs(_to_float32(source[i]))
        bits = magnitudes[: stop - start].view(np.int32)
        least, most = bits[0], bits[0]
        for j in range(len(bits)):
            least, most = min(least, bits[j]), max(most, bits[j])
        low_code, high_code = least >> 16, min((most + 0xFFFF) >> 16, BF16_TOP)
        scales[start // BLOCK * 2] = low_code
        scales[start // BLOCK * 2 + 1] = high_code
        low, high = _read_scale(low_code, scratch), _read_scale(high_code, scratch)
        span = np.float32(high - low)
        _levels(low, high, top, table)
        for i in range(start, stop):
            magnitude = magnitudes[i - start]
            share = np.float32(np.float32(magnitude - low) / span) if span > 0 else np.float32(0)
            share = min(max(share, np.float32(0)), np.float32(1))
            level = min(int(np.float32(np.sqrt(share) * np.float32(top))), top - 1)
            below = np.float32(magnitude - table[level])
            level += int(below > np.float32(table[level + 1] - magnitude))
            negative = _to_float32(source[i]) < 0
            sent[i] = -table[level] if negative else table[level]
            code = level | (top + 1 if negative else 0)
            if width == 8:
                codes[i] = code
            else:
                codes[i >> 1] |= code << (4 * (i & 1))


@compiled
def read_companded(
    codes: Array, scales: Array, sent: Array, width: int, first: int, last: int
) -> bool:
    """int8 and int4; False if scales are impossible."""
    top = (1 << (width - 1)) - 1
    table, scratch = np.empty(top + 1, np.float32), np.empty(1, np.float32)
    for start in range(first, last, BLOCK):
        low_code, high_code = scales[start // BLOCK * 2], scales[start // BLOCK * 2 + 1]
        if low_code > high_code or high_code > BF16_TOP:
            return False
        _levels(_read_scale(low_code, scratch), _read_scale(high_code, scratch), top, table)
        for i in range(start, min(start + BLOCK, last)):
            code = codes[i] if width == 8 else (codes[i >> 1] >> (4 * (i & 1))) & 15
            level = table[code & top]
            sent[i] = -level if code > top else level
    return True


@compiled
def write_sign(
    source: Array,
    sent: Array,
    codes: Array,
    scales: Array,
    width: int,
    first: int,
    last: int,
) -> None:
    """sign, with `width` 1; `codes` is zero before."""
    sums, magnitudes = np.empty(BLOCK, np.float64), np.empty(BLOCK, np.float64)
    scratch = np.empty(1, np.float32)
    for start in range(first, last, BLOCK):
        stop = min(start + BLOCK, last)
        sums[:] = 0
        nonzero, least = 0, np.inf
        for i in range(start, stop):
            magnitude = np.float64(abs(_to_float32(source[i])))
            sums[i - start] = magnitude
            if magnitude > 0:
                magnitudes[nonzero] = magnitude
                nonzero += 1
                least = min(least, magnitude)
        half = BLOCK // 2
        while half:  # this order of additions is part of the format
            for j in range(half):
                sums[j] += sums[j + half]
            half //= 2
        scale = sums[0] / (stop - start)
        if nonzero and scale > MOST_MEDIANS * least:  # else it is below as many medians too
            median = np.sort(magnitudes[:nonzero])[(nonzero - 1) // 2]
            scale = min(scale, MOST_MEDIANS * median)
        scratch[0] = np.float32(scale)
        bits = scratch.view(np.int32)[0]
        code = min((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, BF16_TOP)
        scales[start // BLOCK] = code
        scale32 = _read_scale(code, scratch)
        for i in range(start, stop):
            negative = _to_float32(source[i]) < 0
            sent[i] = -scale32 if negative else scale32
            codes[i >> 3] |= int(negative) * width << (i & 7)


@compiled
def read_sign(codes: Array, scales: Array, sent: Array, width: int, first: int, last: int) -> bool:
    """sign, with `width` 1; False if a scale is impossible."""
    scratch = np.empty(1, np.float32)
    for start in range(first, last, BLOCK):
        if scales[start // BLOCK] > BF16_TOP:
            return False
        mean = _read_scale(scales[start // BLOCK], scratch)
        for i in range(start, min(start + BLOCK, last)):
            sent[i] = -mean if (codes[i >> 3] >> (i & 7)) & width else mean
    return True


@compiled
def weighted_sum(words: Array, skip_first: int, skip_last: int, first: int, last: int) -> Any:
    """The checksum's sum over these words, without the words skip_first ... skip_last - 1."""
    total = np.uint64(0)
    for i in range(first, last):
        key = np.uint64(i + 1) * MULTIPLIER_A
        key ^= key >> np.uint64(32)
        key *= MULTIPLIER_B
        key ^= key >> np.uint64(32)
        total += np.uint64(words[i]) * (key | np.uint64(1))
    for i in range(max(first, skip_first), min(last, skip_last)):
        key = np.uint64(i + 1) * MULTIPLIER_A
        key ^= key >> np.uint64(32)
        key *= MULTIPLIER_B
        key ^= key >> np.uint64(32)
        total -= np.uint64(words[i]) * (key | np.uint64(1))
    return total

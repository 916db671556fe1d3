"""The message codec as compiled kernels, for the CPU; writes the bytes that `ggs.wire.torch_codec` does.

Threads own ranges of the output whose edges fall on whole 32-bit words, so none shares a word.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ggs.compiled import run_threads, threads_for
from ggs.wire import cpu_kernels as kernels
from ggs.wire.layout import BLOCK, CHECKSUM_AT, HEADER_BYTES, Layout

Array = Any  # numpy arrays

GRAIN = 1 << 16
"""Elements that are worth waking a thread for."""


def _ranges(size: int, unit: int) -> list[tuple[int, int]]:
    """0 ... size in one range a thread, cut at multiples of `unit`."""
    threads = threads_for(size, GRAIN)
    step = max(1, -(-size // (threads * unit))) * unit
    return [(a, min(a + step, size)) for a in range(0, size, step)]


def _run(kernel: Callable[..., Any], size: int, unit: int, *shared: Any) -> list[Any]:
    return run_threads(kernel, [(*shared, a, b) for a, b in _ranges(size, unit)])


def _words(buffer: Tensor, start: int, stop: int) -> Array:
    return buffer.numpy()[start:stop].view(np.uint32)


def begin(buffer: Tensor, header: bytes) -> None:
    """Writes the `header` without its checksum, and zeros after it."""
    whole = buffer.numpy()
    whole[HEADER_BYTES:] = 0
    whole[:CHECKSUM_AT] = np.frombuffer(header, np.uint8)


def write_indices(buffer: Tensor, layout: Layout, indices: Tensor) -> None:
    """Codes ascending int64 `indices` (k,) into the low and high sections of `buffer`."""
    if not layout.high_bits:
        return
    low, source = layout.low_bits, indices.numpy()
    highs = _words(buffer, layout.highs, layout.highs + 4 * (-(-layout.high_bits // 32)))
    _run(kernels.write_highs, len(highs), 1, highs, source, low, int(low > 0))
    if low:
        lows = _words(buffer, layout.lows, layout.highs)
        _run(kernels.write_lows, layout.count, 32, lows, source, low)


def read_indices(buffer: Tensor, layout: Layout) -> Tensor | None:
    """Ascending int64 indices (k,), or None where the sections are not what an encoder writes."""
    if not layout.high_bits:
        return torch.arange(layout.count)
    low, count = layout.low_bits, layout.count
    highs = _words(buffer, layout.highs, layout.highs + 4 * (-(-layout.high_bits // 32)))
    ranges = _ranges(len(highs), 1)
    ones = run_threads(kernels.count_ones, [(highs, a, b) for a, b in ranges])
    after = _words(buffer, layout.highs, layout.size)
    if sum(ones) != count or kernels.tail(after, layout.high_bits):
        return None
    lows = _words(buffer, layout.lows, layout.highs)
    if kernels.tail(lows, count * low):
        return None
    indices = np.empty(count, np.int64)
    firsts = np.concatenate([[0], np.cumsum(ones)]).tolist()
    run_threads(
        kernels.read_indices,
        [(highs, lows, low, int(low > 0), indices, first, a, b)
         for first, (a, b) in zip(firsts, ranges, strict=False)],
    )  # fmt: skip
    good = all(_run(kernels.ascending, count, 1, indices, layout.numel))
    return torch.from_numpy(indices) if good else None


def write_values(buffer: Tensor, layout: Layout, values: Tensor) -> Tensor:
    """Codes `values` (k,) into `buffer` and returns what the receiver will decode, (k,)."""
    source = values.detach().contiguous().numpy()
    sent = torch.empty(layout.count, dtype=layout.format.dtype)
    bits, target = layout.format.bits, sent.numpy()
    section = buffer.numpy()[layout.values : layout.scales]
    if bits >= 32:
        raw = section[: layout.count * bits // 8].view(target.dtype)
        _run(kernels.write_floats, layout.count, BLOCK, source, target, raw)
    elif bits == 16:
        raw = section[: layout.count * 2].view(np.uint16)
        _run(kernels.write_bf16, layout.count, BLOCK, source, target, raw)
    else:
        scales = buffer.numpy()[layout.scales : layout.lows].view(np.uint16)
        kernel = kernels.write_sign if bits == 1 else kernels.write_companded
        _run(kernel, layout.count, BLOCK, source, target, section, scales, bits)
    return sent


def read_values(buffer: Tensor, layout: Layout) -> Tensor | None:
    """Values (k,), or None where the sections are not what an encoder writes."""
    sent = torch.empty(layout.count, dtype=layout.format.dtype)
    bits, target, whole = layout.format.bits, sent.numpy(), buffer.numpy()
    section = whole[layout.values : layout.scales]
    if kernels.tail(section.view(np.uint32), layout.count * bits):
        return None
    if bits >= 16:
        raw = section[: layout.count * bits // 8]
        raw = raw.view(np.uint16) if bits == 16 else raw.view(target.dtype)
        plain = kernels.read_bf16 if bits == 16 else kernels.read_floats
        return sent if all(_run(plain, layout.count, BLOCK, raw, target)) else None
    scales = whole[layout.scales : layout.lows]
    used = -(-layout.count // BLOCK) * layout.format.scales * 16
    if kernels.tail(scales.view(np.uint32), used):
        return None
    kernel = kernels.read_sign if bits == 1 else kernels.read_companded
    good = _run(kernel, layout.count, BLOCK, section, scales.view(np.uint16), target, bits)
    return sent if all(good) else None


def checksum(buffer: Tensor) -> Tensor:
    """64-bit sum over the 32-bit words of `buffer`, as an int64 tensor (1,)."""
    words = _words(buffer, 0, buffer.numel())
    head = (CHECKSUM_AT // 4, HEADER_BYTES // 4)
    parts = _run(kernels.weighted_sum, len(words), 1, words, *head)
    total = sum(int(part) for part in parts) & (2**64 - 1)
    return torch.from_numpy(np.array([total], np.uint64).view(np.int64))

"""Compiled loops of `ggs.select.cpu`.

Throughout, `values` is a float array and `bits` the same memory as integers of the same width.
Without the sign bit (`& mask`) these integers are ordered as the magnitudes are, and comparing
integers is what compilers turn into vector code. A piece is a range [lows[p], highs[p]) of one
segment, worked on by one thread, with its own room [rooms[p], rooms[p + 1]) for what it moves out:
`candidates` are their indices, `taken` their values.
"""

from typing import Any

import numpy as np

from ggs.compiled import compiled

Array = Any  # numpy arrays; numba's types are beyond mypy

BLOCK = 64
"""Elements per vectorised comparison, the least that LLVM vectorises well."""
TILE = 4 * BLOCK
"""Elements whose blocks are all compared before any is looked into."""
STRIP = 8
"""Elements examined one by one around a candidate."""
RADIX_BITS = 11


@compiled
def _hit_in_block(bits: Array, below: int, mask: int) -> Any:
    """Whether a magnitude of these BLOCK exceeds `below`, without a branch."""
    integer = bits.dtype.type
    sign = integer(0)
    for j in range(BLOCK):
        sign |= integer(below - integer(bits[j] & mask))
    return sign < 0


@compiled
def _hit_in_strip(bits: Array, below: int, mask: int) -> Any:
    """Whether a magnitude of these STRIP exceeds `below`, without a branch."""
    integer = bits.dtype.type
    sign = integer(0)
    for j in range(STRIP):
        sign |= integer(below - integer(bits[j] & mask))
    return sign < 0


@compiled
def _take_strip(
    values: Array,
    bits: Array,
    first: int,
    threshold: int,
    mask: int,
    candidates: Array,
    taken: Array,
) -> int:
    """Moves magnitudes >= `threshold` out of the strip that begins at index `first`; how many."""
    count = 0
    for j in range(STRIP):
        value = values[j]
        candidates[count] = first + j
        taken[count] = value
        hit = (bits[j] & mask) >= threshold
        values[j] = 0 if hit else value
        count += np.int64(hit)
    return count


@compiled
def _take_rest(
    values: Array,
    bits: Array,
    first: int,
    threshold: int,
    mask: int,
    candidates: Array,
    taken: Array,
) -> int:
    """The same for less than a tile."""
    count = 0
    for j in range(len(values)):
        if (bits[j] & mask) >= threshold:
            candidates[count] = first + j
            taken[count] = values[j]
            values[j] = 0
            count += 1
    return count


@compiled
def _hit_strips(
    bits: Array, tile: int, threshold: int, mask: int, blocks: Array, strips: Array
) -> int:
    """Lists where the strips of a whole tile begin that have a candidate; returns how many.

    Lists grow by 0 or 1 instead of by a branch: with one candidate in a few hundred elements, every
    such branch would be mispredicted, and each time the stream from memory would stall.
    """
    below = bits.dtype.type(threshold - 1)
    block_count = 0
    for start in range(tile, tile + TILE, BLOCK):
        blocks[block_count] = start
        block_count += np.int64(_hit_in_block(bits[start : start + BLOCK], below, mask))
    count = 0
    for b in range(block_count):
        for offset in range(0, BLOCK, STRIP):
            start = blocks[b] + offset
            strips[count] = start
            count += np.int64(_hit_in_strip(bits[start : start + STRIP], below, mask))
    return count


@compiled
def scan(
    values: Array,
    bits: Array,
    mask: int,
    thresholds: Array,
    segments: Array,
    lows: Array,
    highs: Array,
    rooms: Array,
    candidates: Array,
    taken: Array,
    counts: Array,
    first_piece: int,
    last_piece: int,
) -> None:
    """Moves every magnitude >= its segment's threshold from `values` to `candidates` and `taken`.

    counts[p] becomes the number of candidates, or -1 - (those moved) if they did not fit in the piece's
    room.
    """
    blocks = np.empty(TILE // BLOCK + 1, np.int64)
    strips = np.empty(TILE // STRIP + 1, np.int64)
    for p in range(first_piece, last_piece):
        threshold = thresholds[segments[p]]
        at, end = rooms[p], rooms[p + 1]
        full = False
        whole = lows[p] + (highs[p] - lows[p]) // TILE * TILE
        for tile in range(lows[p], whole, TILE):
            count = _hit_strips(bits, tile, threshold, mask, blocks, strips)
            if at + count * STRIP > end:
                full = True
                break
            for c in range(count):
                start = strips[c]
                stop = start + STRIP
                at += _take_strip(
                    values[start:stop], bits[start:stop], start, threshold, mask,
                    candidates[at : at + STRIP], taken[at : at + STRIP],
                )  # fmt: skip
        rest = highs[p] - whole
        full = full or at + rest > end
        if not full:
            at += _take_rest(
                values[whole : highs[p]], bits[whole : highs[p]], whole, threshold, mask,
                candidates[at:end], taken[at:end],
            )  # fmt: skip
        counts[p] = -1 - (at - rooms[p]) if full else at - rooms[p]


@compiled
def take_exact(
    values: Array,
    bits: Array,
    mask: int,
    threshold: int,
    quota: int,
    lows: Array,
    highs: Array,
    rooms: Array,
    candidates: Array,
    taken: Array,
    counts: Array,
    piece: int,
) -> None:
    """Like `scan` for one piece where `threshold` is the exact one; keeps at most `quota` equals."""
    at = rooms[piece]
    for j in range(lows[piece], highs[piece]):
        magnitude = bits[j] & mask
        if magnitude < threshold or (magnitude == threshold and quota == 0):
            continue
        quota -= np.int64(magnitude == threshold)
        candidates[at] = j
        taken[at] = values[j]
        values[j] = 0
        at += 1
    counts[piece] = at - rooms[piece]


@compiled
def histogram(
    bits: Array, mask: int, start: int, stop: int, prefix: int, top: int, shift: int, bins: Array
) -> None:
    """Counts magnitudes that have `prefix` above bit `top` by their bits shift ... top - 1."""
    for j in range(start, stop):
        magnitude = np.int64(bits[j] & mask)
        if magnitude >> top == prefix:
            bins[(magnitude >> shift) - (prefix << (top - shift))] += 1


@compiled
def descend(bins: Array, k: int) -> tuple[int, int]:
    """The bin that holds the k-th largest (k >= 1), and its rank among the bin's own."""
    b = len(bins) - 1
    while bins[b] < k:
        k -= bins[b]
        b -= 1
    return b, k


@compiled
def _kth_largest(magnitudes: Array, least: int, k: int) -> int:
    """k-th largest of `magnitudes`, all of them >= `least` and most of them near it."""
    span = np.int64(0)
    for j in range(len(magnitudes)):
        span = max(span, np.int64(magnitudes[j]) - least)
    top = 0
    while span >> top:
        top += 1
    digit = 4  # more bins than numbers would only have to be cleared and walked over
    while digit < RADIX_BITS and len(magnitudes) >> digit:
        digit += 1
    prefix = 0
    space = np.empty(1 << digit, np.int64)
    while top > 0:
        shift = max(top - digit, 0)
        bins = space[: 1 << (top - shift)]
        bins[:] = 0
        for j in range(len(magnitudes)):
            rest = np.int64(magnitudes[j]) - least
            if rest >> top == prefix:
                bins[(rest >> shift) - (prefix << (top - shift))] += 1
        b, k = descend(bins, k)
        prefix = (prefix << (top - shift)) | b
        top = shift
    return least + prefix


@compiled
def _keep(
    candidates: Array,
    taken: Array,
    magnitudes: Array,
    threshold: int,
    indices: Array,
    selected: Array,
    values: Array,
    rejected: Array,
) -> None:
    """Keeps as many candidates as `indices` has room for: all > `threshold`, then its equals."""
    above = 0
    for j in range(len(magnitudes)):
        above += np.int64(magnitudes[j] > threshold)
    quota = len(indices) - above
    kept = left = 0
    for j in range(len(magnitudes)):
        keep = magnitudes[j] > threshold
        if magnitudes[j] == threshold and quota > 0:
            quota -= 1
            keep = True
        if keep:
            indices[kept] = candidates[j]
            selected[kept] = taken[j]
        rejected[left] = j
        kept += np.int64(keep)
        left += np.int64(not keep)
    for j in range(left):
        values[candidates[rejected[j]]] = taken[rejected[j]]


@compiled
def finish(
    values: Array,
    mask: int,
    thresholds: Array,
    outputs: Array,
    pieces: Array,
    rooms: Array,
    candidates: Array,
    taken: Array,
    taken_bits: Array,
    counts: Array,
    indices: Array,
    selected: Array,
    exact: Array,
    first_segment: int,
    last_segment: int,
) -> None:
    """Keeps the largest candidates of each segment, and puts the others back.

    pieces[s] ... pieces[s + 1] - 1 are the segment's pieces, outputs[s] ... outputs[s + 1] - 1 its
    positions in `indices` and `selected`. exact[s] becomes the least selected magnitude's bits; or -1,
    and all candidates are put back, if they were too few or did not fit.
    """
    for s in range(first_segment, last_segment):
        first, last, start, stop = pieces[s], pieces[s + 1], outputs[s], outputs[s + 1]
        total = 0
        fits = True
        for p in range(first, last):
            fits = fits and counts[p] >= 0
            counts[p] = max(counts[p], -1 - counts[p])
            total += counts[p]
        exact[s] = -1
        if not fits or total < stop - start:
            for p in range(first, last):
                for c in range(rooms[p], rooms[p] + counts[p]):
                    values[candidates[c]] = taken[c]
            continue
        if start == stop:
            continue
        # The candidates of all pieces side by side; the first piece's are there already.
        begin = rooms[first]
        end = begin + counts[first]
        for p in range(first + 1, last):
            for c in range(rooms[p], rooms[p] + counts[p]):
                candidates[end] = candidates[c]
                taken[end] = taken[c]
                end += 1
        magnitudes = taken_bits[begin:end] & mask
        exact[s] = _kth_largest(magnitudes, np.int64(thresholds[s]), stop - start)
        _keep(
            candidates[begin:end], taken[begin:end], magnitudes, exact[s], indices[start:stop],
            selected[start:stop], values, np.empty(total + 1, np.int64),
        )  # fmt: skip


@compiled
def sample(
    values: Array,
    start: int,
    stop: int,
    size: int,
    out: Array,
    first: int,
    last: int,
) -> None:
    """Magnitudes at pseudo-random positions, one in each of `size` equal parts of the segment.

    Fills out[first:last].
    """
    part = (stop - start) // size
    scale = (stop - start) / size  # divisions of integers would be most of the work
    for j in range(first, last):
        jitter = (((j * 2654435761) & 0xFFFFFFFF) * part) >> 32
        out[j] = abs(values[min(start + int(j * scale) + jitter, stop - 1)])

"""Compiled loops of `ggs.select_cpu`.

Throughout, `values` is a float array and `bits` the same memory as integers of the same width.
Without the sign bit (`& mask`) these integers are ordered as the magnitudes are, and comparing
integers is what compilers turn into vector code. A piece is a range [lows[p], highs[p]) of one
segment, worked on by one thread, with its own room [rooms[p], rooms[p + 1]) for candidates.
"""

from typing import Any

import numpy as np

from ggs.compiled import compiled

Array = Any  # numpy arrays; numba's types are beyond mypy

BLOCK = 64
"""Elements per vectorised comparison, the least that LLVM vectorises well."""
TILE = 1024
"""Elements whose comparisons are done before any candidate is looked at: 4 KB stay in L1."""
STRIP = 16
"""Elements examined one by one around a candidate."""
RADIX_BITS = 11


@compiled
def _any_at_least(bits: Array, threshold: int, mask: int) -> Any:
    """Whether any magnitude of a short `bits` reaches `threshold`, without a branch."""
    integer = bits.dtype.type
    below = integer(threshold - 1)
    sign = integer(0)
    for j in range(len(bits)):
        sign |= integer(below - integer(bits[j] & mask))
    return sign < 0


@compiled
def _take_strip(
    values: Array, bits: Array, first: int, threshold: int, mask: int, found: Array, taken: Array
) -> int:
    """Moves magnitudes >= `threshold` out of `values`; returns how many. `first` is its index."""
    count = 0
    for j in range(len(values)):
        value = values[j]
        found[count] = first + j
        taken[count] = value
        hit = (bits[j] & mask) >= threshold
        values[j] = 0 if hit else value
        count += np.int64(hit)
    return count


@compiled
def scan(
    values: Array,
    bits: Array,
    update: Array,
    accumulate: bool,
    mask: int,
    thresholds: Array,
    segments: Array,
    lows: Array,
    highs: Array,
    rooms: Array,
    found: Array,
    taken: Array,
    counts: Array,
    first_piece: int,
    last_piece: int,
) -> None:
    """Moves every magnitude >= its segment's threshold from `values` to `found` and `taken`.

    If `accumulate`, `values += update` comes first. counts[p] becomes the number of candidates, or
    -1 - (those moved) if they did not fit in the piece's room.
    """
    flags = np.empty(TILE // BLOCK, np.bool_)
    for p in range(first_piece, last_piece):
        threshold = thresholds[segments[p]]
        at, end = rooms[p], rooms[p + 1] - STRIP
        full = False
        for tile in range(lows[p], highs[p], TILE):
            stop = min(tile + TILE, highs[p])
            if accumulate:
                target, source = values[tile:stop], update[tile:stop]
                for j in range(len(target)):
                    target[j] += source[j]
            if full:
                continue
            blocks = (stop - tile) // BLOCK
            for f in range(blocks):
                block = bits[tile + f * BLOCK : tile + f * BLOCK + BLOCK]
                flags[f] = _any_at_least(block, threshold, mask)
            for f in range(blocks + 1):
                if f < blocks and not flags[f]:
                    continue
                start = tile + f * BLOCK
                for s in range(start, min(start + BLOCK, stop), STRIP):
                    e = min(s + STRIP, stop)
                    strip = bits[s:e]
                    if not _any_at_least(strip, threshold, mask):
                        continue
                    if at > end:
                        full = True
                        break
                    at += _take_strip(
                        values[s:e], strip, s, threshold, mask, found[at:], taken[at:]
                    )
                if full:
                    break
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
    found: Array,
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
        found[at] = j
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
def _kth_of_pieces(
    bits: Array, mask: int, rooms: Array, counts: Array, first: int, last: int, width: int, k: int
) -> int:
    """k-th largest magnitude among the candidates of the pieces first ... last - 1."""
    prefix = 0
    top = width
    while top > 0:
        shift = max(top - RADIX_BITS, 0)
        bins = np.zeros(1 << (top - shift), np.int64)
        for p in range(first, last):
            histogram(bits, mask, rooms[p], rooms[p] + counts[p], prefix, top, shift, bins)
        b, k = descend(bins, k)
        prefix = (prefix << (top - shift)) | b
        top = shift
    return prefix


@compiled
def finish(
    values: Array,
    mask: int,
    width: int,
    wanted: Array,
    outputs: Array,
    pieces: Array,
    rooms: Array,
    found: Array,
    taken: Array,
    taken_bits: Array,
    counts: Array,
    indices: Array,
    selected: Array,
    exact: Array,
    totals: Array,
    first_segment: int,
    last_segment: int,
) -> None:
    """Keeps the wanted[s] largest candidates of each segment, and puts the others back.

    pieces[s] ... pieces[s + 1] - 1 are the segment's pieces, outputs[s] is its place in `indices`
    and `selected`. exact[s] becomes the last selected magnitude's bits and totals[s] the number of
    candidates; exact[s] = -1 if they were too few or did not fit, with all of them put back.
    """
    for s in range(first_segment, last_segment):
        first, last, k = pieces[s], pieces[s + 1], wanted[s]
        total = 0
        fits = True
        for p in range(first, last):
            fits = fits and counts[p] >= 0
            counts[p] = max(counts[p], -1 - counts[p])
            total += counts[p]
        exact[s] = -1
        totals[s] = total if fits else -1
        threshold = -1  # of magnitudes >= 0
        quota = 0
        if not fits or total < k:
            k = 0
            threshold = np.int64(mask)
        elif 0 < k < total:
            threshold = _kth_of_pieces(taken_bits, mask, rooms, counts, first, last, width, k)
            above = 0
            for p in range(first, last):
                for c in range(rooms[p], rooms[p] + counts[p]):
                    above += np.int64((taken_bits[c] & mask) > threshold)
            quota = k - above
            exact[s] = threshold
        elif k:
            exact[s] = np.int64(mask)
            for p in range(first, last):
                for c in range(rooms[p], rooms[p] + counts[p]):
                    exact[s] = min(exact[s], np.int64(taken_bits[c] & mask))
        else:
            exact[s] = np.int64(mask)
            threshold = np.int64(mask)
        at = outputs[s]
        for p in range(first, last):
            for c in range(rooms[p], rooms[p] + counts[p]):
                magnitude = np.int64(taken_bits[c] & mask)
                if magnitude > threshold or (magnitude == threshold and quota > 0):
                    quota -= np.int64(magnitude == threshold)
                    indices[at] = found[c]
                    selected[at] = taken[c]
                    at += 1
                else:
                    values[found[c]] = taken[c]


@compiled
def sample(bits: Array, mask: int, start: int, stop: int, size: int, out: Array) -> None:
    """`size` magnitudes, one from a pseudo-random place in each of as many equal parts."""
    length = stop - start
    part = max(length // size, 1)
    for j in range(size):
        jitter = ((j * 2654435761) >> 9) % part
        out[j] = bits[start + j * length // size + jitter] & mask

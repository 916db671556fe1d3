"""All shared parameters as one flat index space.

Every shared parameter gets a slot in the index space [0, n). The weights themselves become windows on
one flat buffer per run of equal dtype, so that a sparse update is one ``index_add_`` instead of one
per tensor, and the residual is one flat buffer, so that selection sees the whole model at once.

Slots are laid out in the memory order of rank 0's tensors (channels-last stays channels-last), so a
flat index means the same element on every rank whatever memory format a rank started with.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ggs.dist.collectives import Collectives
from ggs.errors import UnsupportedError

_ALIGNMENT_BYTES = 64  # what GPU kernels want of a weight's address; the CPU's do not mind


@dataclass(frozen=True)
class Slot:
    """One parameter's place in the flat index space."""

    name: str
    parameter: torch.nn.Parameter
    offset: int
    numel: int
    stride: tuple[int, ...]

    def view(self, flat: Tensor, start: int = 0) -> Tensor:
        """This parameter's elements of ``flat``, whose first element has flat index ``start``."""
        first = flat.storage_offset() + self.offset - start
        return flat.as_strided(self.parameter.shape, self.stride, first)

    def owner(self, flat: Tensor, start: int) -> Tensor:
        """As ``view``, but with a storage of its own size over the same memory, which it keeps alive.

        What saves and copies tensors (``torch.save``, safetensors, ``deepcopy``) takes the storage for all
        that belongs to one, and would write every weight with each, or refuse them as shared.
        """
        first, size = self.offset - start, flat.element_size()
        storage = flat.untyped_storage()[first * size : (first + self.numel) * size]
        return torch.empty(0, dtype=flat.dtype, device=flat.device).set_(
            storage, 0, self.parameter.shape, self.stride
        )


@dataclass(frozen=True)
class Chunk:
    """A run of slots with one dtype: flat indices [start, stop) live in ``weights``."""

    start: int
    stop: int
    weights: Tensor
    slots: tuple[Slot, ...]
    delta: Tensor | None
    """Float32 accumulator of half-precision weights: N workers' updates are summed before rounding."""


def padded(numel: int, element_size: int, device_type: str) -> int:
    """Elements of the flat index space that a parameter of ``numel`` takes up on a device."""
    align = 1 if device_type == "cpu" else _ALIGNMENT_BYTES // element_size
    return -(-numel // align) * align


class FlatParameters:
    """The shared parameters of a model, flattened in place.

    Args:
        named: (name, parameter) pairs; all on one device.
        dense_numel_below: parameters with fewer elements come first and form the dense part [0, dense_numel).
        strides: for each parameter of ``named`` the strides to lay it out with (rank 0's).
    """

    def __init__(
        self,
        named: Sequence[tuple[str, torch.nn.Parameter]],
        strides: Sequence[tuple[int, ...]],
        dense_numel_below: int = 0,
    ) -> None:
        entries = [(n, p, s) for (n, p), s in zip(named, strides, strict=True)]
        dense = [entry for entry in entries if entry[1].numel() < dense_numel_below]
        sparse = [entry for entry in entries if entry[1].numel() >= dense_numel_below]
        self.chunks: list[Chunk] = []
        self.numel = 0
        self.dense_numel = 0
        for part in (dense, sparse):
            for dtype in dict.fromkeys(parameter.dtype for _, parameter, _ in part):
                self._append_chunk([entry for entry in part if entry[1].dtype == dtype])
            if part is dense:
                self.dense_numel = self.numel
        self.slots = [slot for chunk in self.chunks for slot in chunk.slots]
        self._addresses = [slot.parameter.data_ptr() for slot in self.slots]
        self._parameters = [slot.parameter for slot in self.slots]
        double = any(chunk.weights.dtype == torch.float64 for chunk in self.chunks)
        self.dtype = torch.float64 if double else torch.float32
        """The residual's dtype: at least float32, so that small updates can add up."""

    def _append_chunk(
        self, entries: Iterable[tuple[str, torch.nn.Parameter, tuple[int, ...]]]
    ) -> None:
        start = offset = self.numel
        slots = []
        for name, parameter, stride in entries:
            slots.append(Slot(name, parameter, offset, parameter.numel(), stride))
            offset += padded(parameter.numel(), parameter.element_size(), parameter.device.type)
        first = slots[0].parameter
        weights = torch.zeros(offset - start, dtype=first.dtype, device=first.device)
        for slot in slots:
            slot.view(weights, start).copy_(slot.parameter.detach())
            slot.parameter.data = slot.owner(weights, start)
        half = first.dtype in (torch.bfloat16, torch.float16)
        delta = torch.zeros_like(weights, dtype=torch.float32) if half else None
        self.chunks.append(Chunk(start, offset, weights, tuple(slots), delta))
        self.numel = offset

    def segments(self, per_tensor: bool) -> list[tuple[int, int]]:
        """(offset from dense_numel, elements without padding) of the parts that a selection is made from."""
        if not per_tensor:
            return [(0, self.numel - self.dense_numel)]
        sparse = [slot for slot in self.slots if slot.offset >= self.dense_numel]
        return [(slot.offset - self.dense_numel, slot.numel) for slot in sparse]

    def check_in_place(self) -> None:
        """Raise UnsupportedError if a parameter's storage was replaced since construction."""
        if [parameter.data_ptr() for parameter in self._parameters] == self._addresses:
            return
        moved = next(
            slot.name
            for slot, address in zip(self.slots, self._addresses, strict=True)
            if slot.parameter.data_ptr() != address
        )
        raise UnsupportedError(
            f"parameter {moved} got new storage (model.to(), .half() or p.data = ...) after the "
            "optimizer was wrapped: move or convert the model first, then wrap"
        )

    def add_(
        self,
        updates: Iterable[tuple[Tensor | None, Tensor]],
        start: int,
        scale: float,
        residual: Tensor,
    ) -> None:
        """weights += scale · Σ updates, added in the order given, so every rank gets the same bits.

        Half-precision weights are rounded once, after all updates, and end at their largest number; what
        that took goes back into every worker's residual, where it counts once in their mean.

        Args:
            updates: (indices, values) each: ascending int64 indices (k,) relative to ``start``, or None
                for all elements from ``start`` on, and as many values.
            residual: (n,) of this worker.
        """
        touched: list[tuple[Chunk, Tensor | slice]] = []
        for indices, values in updates:
            for chunk, positions, part in self._split(indices, values, start):
                target = chunk.weights if chunk.delta is None else chunk.delta
                part = part.to(target.dtype)
                if positions is None:
                    target.add_(part, alpha=scale)
                else:
                    target.index_add_(0, positions, part, alpha=scale)
                if chunk.delta is not None:
                    touched.append((chunk, slice(None) if positions is None else positions))
        for chunk, where in touched:  # an element met twice adds a zero the second time
            assert chunk.delta is not None
            exact = chunk.weights[where].float() + chunk.delta[where]
            largest = torch.finfo(chunk.weights.dtype).max
            rounded = exact.clamp(-largest, largest).to(chunk.weights.dtype)
            chunk.weights[where] = rounded
            chunk.delta[where] = 0.0
            residual[chunk.start : chunk.stop][where] += exact - rounded.float()

    def _split(
        self, indices: Tensor | None, values: Tensor, start: int
    ) -> Iterable[tuple[Chunk, Tensor | None, Tensor]]:
        """The parts of an update by chunk: (chunk, positions inside it or None for all, values)."""
        stop = start + values.numel() if indices is None else self.numel
        chunks = [chunk for chunk in self.chunks if start <= chunk.start and chunk.stop <= stop]
        if indices is None:
            for chunk in chunks:
                yield chunk, None, values[chunk.start - start : chunk.stop - start]
        elif len(chunks) == 1:
            shift = chunks[0].start - start
            yield chunks[0], (indices - shift if shift else indices), values
        else:
            bounds = torch.tensor([chunk.stop - start for chunk in chunks], device=indices.device)
            ends = torch.searchsorted(indices, bounds).tolist()
            begin = 0
            for chunk, end in zip(chunks, ends, strict=True):
                yield chunk, indices[begin:end] + (start - chunk.start), values[begin:end]
                begin = end


@torch.no_grad()
def strides_of_rank_0(
    parameters: Sequence[Tensor], collectives: Collectives
) -> list[tuple[int, ...]]:
    """The strides with which every worker lays out ``parameters``; a collective."""
    strides = [layout_strides(parameter) for parameter in parameters]
    if not strides:
        return []
    numbers = torch.tensor([n for s in strides for n in s], dtype=torch.int64)
    numbers = collectives.broadcast_(numbers.to(parameters[0].device)).cpu()
    parts = torch.split(numbers, [len(s) for s in strides])
    return [tuple(part.tolist()) for part in parts]


def layout_strides(parameter: Tensor) -> tuple[int, ...]:
    """The parameter's own strides if it fills its memory without gaps, else the row-major ones."""
    expected = 1
    order = sorted(range(parameter.dim()), key=lambda d: (parameter.stride(d), parameter.size(d)))
    for dimension in order:
        if parameter.size(dimension) == 1:
            continue
        if parameter.stride(dimension) != expected:
            return torch.empty(parameter.shape, device="meta").stride()
        expected *= parameter.size(dimension)
    return parameter.stride()

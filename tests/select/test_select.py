"""Selection: the compiled kernels give what the plain twin gives, on every kind of numbers."""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ggs.select import Selector, select_reference
from tests.fuzz import cases

SIZES = st.sampled_from([0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025, 4097, 20011])
KINDS = ["normal", "heavy", "few values", "equal", "zeros", "mostly zeros", "denormal", "extremes"]


def numbers(kind: str, numel: int, seed: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(numel, generator=generator, dtype=dtype)
    tiny = torch.finfo(dtype).smallest_normal
    return {
        "normal": lambda: base,
        "heavy": lambda: base**5 * 1e-3,
        "few values": lambda: base.round(),
        "equal": lambda: base.sign() * 0.25,
        "zeros": lambda: base * 0,
        "mostly zeros": lambda: base * (base > 2.5),
        "denormal": lambda: base * tiny / 8,
        "extremes": lambda: base.sign() * torch.finfo(dtype).max * (base.abs() > 1),
    }[kind]()


def check(residual: Tensor, k: int, indices: Tensor, values: Tensor, after: Tensor) -> None:
    expected, chosen = select_reference(residual, k)
    assert indices.dtype == torch.int64
    assert values.dtype == residual.dtype
    torch.testing.assert_close(indices, expected, rtol=0, atol=0)
    torch.testing.assert_close(values, chosen, rtol=0, atol=0)
    left = residual.clone()
    left[expected] = 0
    torch.testing.assert_close(after, left, rtol=0, atol=0)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """So many threads, and so little work for each that small tensors use them all."""
    from ggs.select import cpu as select_cpu

    monkeypatch.setattr(select_cpu, "SCAN_GRAIN", 16)
    monkeypatch.setattr(select_cpu, "FINISH_GRAIN", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_reference_is_a_stable_sort() -> None:
    for seed, kind in itertools.product(range(3), KINDS):
        residual = numbers(kind, 500, seed, torch.float64)
        order = residual.abs().sort(descending=True, stable=True).indices
        for k in (0, 1, 7, 250, 500):
            indices, values = select_reference(residual, k)
            assert torch.equal(indices, order[:k].sort().values)
            assert torch.equal(values, residual[indices])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernel_equals_reference(dtype: torch.dtype) -> None:
    @cases(0.8)
    @given(SIZES, st.sampled_from(KINDS), st.floats(0, 1), st.integers(0, 10**6))
    def run(numel: int, kind: str, density: float, seed: int) -> None:
        k = round(numel * density**3)
        selector = Selector(numel)
        for step in range(3):  # the first has no threshold to start from, the others do
            start = numbers(kind, numel, seed + step, dtype)
            residual = start.clone()
            check(start, k, *selector.select_(residual, k), residual)

    run()


@pytest.mark.usefixtures("threads")
def test_numbers_that_change_from_step_to_step() -> None:
    selector = Selector(30_000)
    residual = torch.zeros(30_000)
    for step, scale in enumerate([1, 1, 1.1, 0.9, 100, 1e-6, 1e-6, 0, 0, 1, 1e30]):
        update = numbers("normal", 30_000, step, torch.float32) * scale
        residual += update
        start = residual.clone()
        k = [30, 3, 3000][step % 3]
        check(start, k, *selector.select_(residual, k), residual)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_magnitudes_from_one_end_of_the_format_to_the_other(dtype: torch.dtype) -> None:
    """What is expected of the next step may overflow; nobody is to be warned of it."""
    largest, least = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    rising = [largest / 8 * eighths for eighths in range(1, 9)]
    for scales in ([*rising, largest], [1, 1, 1, least, largest, largest, least, largest]):
        selector = Selector(3000)
        for scale in scales:
            residual = torch.linspace(0.9, 1, 3000, dtype=dtype) * scale
            check(residual.clone(), 30, *selector.select_(residual, 30), residual)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_not_finite_is_selected_first(dtype: torch.dtype) -> None:
    """So the caller finds it among the selected, and says so itself."""
    for numel, bad in itertools.product((1, 300, 30_000), (math.inf, -math.inf, math.nan)):
        selector = Selector(numel)
        for step in range(9):
            residual = numbers("normal", numel, step, dtype)
            residual[: [0, 0, 0, 1, numel, numel, 1, 0, 0][step]] = bad
            start = residual.clone()
            k = max(1, numel // 100)
            indices, values = selector.select_(residual, k)
            expected = min(k, int((~start.isfinite()).sum()))
            assert int((~values.isfinite()).sum()) == expected
            if not expected:
                check(start, k, indices, values, residual)


@pytest.mark.usefixtures("threads")
def test_segments_equal_reference_in_each() -> None:
    lengths = st.lists(st.sampled_from([0, 1, 5, 64, 300, 5000]), min_size=1, max_size=12)

    @cases(0.5)
    @given(lengths, st.sampled_from(KINDS), st.floats(0, 1), st.integers(0, 10**6))
    def run(sizes: list[int], kind: str, density: float, seed: int) -> None:
        offsets = [0, *itertools.accumulate(sizes)]
        counts = [round(size * density) for size in sizes]
        selector = Selector(offsets[-1])
        for step in range(3):
            start = numbers(kind, offsets[-1], seed + step, torch.float32)
            residual = start.clone()
            indices, values = selector.select_segments_(residual, offsets, counts)
            at = 0
            for low, high, count in zip(offsets, offsets[1:], counts, strict=False):
                part = slice(at, at + count)
                found = (indices[part] - low, values[part])
                check(start[low:high], count, *found, residual[low:high])
                at += count
            assert at == len(indices) == len(values)

    run()


def test_large_residual_with_threads() -> None:
    numel = 3_000_017
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        selector = Selector(numel)
        residual = torch.zeros(numel)
        for step in range(3):
            update = numbers("heavy", numel, step, torch.float32)
            residual += update
            start = residual.clone()
            check(start, 3000, *selector.select_(residual, 3000), residual)
    finally:
        torch.set_num_threads(before)

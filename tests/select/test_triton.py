"""The CUDA kernels of selection, run in Triton's interpreter where there is no GPU."""

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ggs.select import Selector, select_reference

pytest.importorskip("triton", reason="this torch came without Triton")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="run by test_in_the_interpreter")


@pytest.mark.skipif(INTERPRETED, reason="this is the inner run")
def test_in_the_interpreter() -> None:
    """Runs this file in a process of its own: Triton decides at its import how its kernels run."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    run = subprocess.run(
        command,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


def steps(numel: int, kind: str, dtype: torch.dtype) -> Iterator[Tensor]:
    """Updates of four steps."""
    for step in range(4):
        noise = torch.randn(numel, generator=torch.Generator().manual_seed(step), dtype=dtype)
        yield {
            "normal": noise,
            "few values": (noise * 4).round(),
            "denormal": noise * torch.finfo(dtype).smallest_normal / 8,
            "growing": noise * 10.0**step,
        }[kind]


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "few values", "denormal", "growing"])
@pytest.mark.parametrize(("numel", "k"), [(1, 1), (255, 20), (2048, 2048), (20_001, 30)])
def test_interpreted_kernels_equal_reference(
    kind: str, dtype: torch.dtype, numel: int, k: int
) -> None:
    from ggs.select.triton import TritonSelector

    selector = TritonSelector(numel)
    residual = torch.zeros(numel, dtype=dtype)
    found_by_kernels = 0
    for update in steps(numel, kind, dtype):
        expected = residual + update
        residual = expected.clone()
        found = selector.select_(residual, k)
        indices, values = select_reference(expected, k)
        if found is None:  # too many equals: the caller selects by the reference
            assert torch.equal(residual, expected)
        else:
            found_by_kernels += 1
            assert torch.equal(found[0], indices)
            assert torch.equal(found[1], values)
            expected[indices] = 0
            assert torch.equal(residual, expected)
    assert found_by_kernels > 0 or kind == "few values"


@interpreted
@pytest.mark.parametrize(("numel", "k"), [(0, 0), (10, 0)])
def test_nothing_to_select(numel: int, k: int) -> None:
    from ggs.select.triton import TritonSelector

    residual = torch.ones(numel)
    indices, values = TritonSelector(len(residual)).select_(residual, k)
    assert len(indices) == len(values) == 0
    assert torch.equal(residual, torch.ones(numel))


@interpreted
def test_every_launch_is_on_the_residuals_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on the current device, which need not be the worker's own."""
    from ggs.select import triton as select_triton

    guarded: list[Tensor] = []
    launches: list[Tensor] = []

    @contextmanager
    def device_of(tensor: Tensor) -> Iterator[None]:
        guarded.append(tensor)
        yield
        guarded.pop()

    class Launched:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def launch(residual: Tensor, *arguments: Any) -> None:
                assert guarded, "launched on whichever device is current"
                assert guarded[-1] is residual
                launches.append(residual)
                self.kernel[grid](residual, *arguments)

            return launch

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    for name in ("_count", "_move"):
        monkeypatch.setattr(select_triton, name, Launched(getattr(select_triton, name)))
    residual = torch.randn(3000)
    assert select_triton.TritonSelector(3000).select_(residual, 30) is not None
    assert len(launches) == 2


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_gpu_that_is_not_the_current_one_selects_too() -> None:
    selector, residual = Selector(100_000), torch.zeros(100_000, device="cuda:1")
    torch.cuda.set_device(0)
    for update in steps(100_000, "normal", torch.float32):
        residual += update.to("cuda:1")
        expected = residual.cpu()
        found = selector.select_(residual, 100)
        indices, values = select_reference(expected, 100)
        assert torch.equal(found[0].cpu(), indices)
        assert torch.equal(found[1].cpu(), values)
    assert torch.cuda.current_device() == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_selector_on_a_gpu_equals_reference_and_itself() -> None:
    numel, k = 3_000_001, 3000
    runs = []
    for _ in range(2):
        selector, residual = Selector(numel), torch.zeros(numel, device="cuda")
        for update in steps(numel, "normal", torch.float32):
            residual += update.cuda()
            expected = residual.clone()
            found = selector.select_(residual, k)
            indices, values = select_reference(expected, k)
            assert torch.equal(found[0], indices)
            assert torch.equal(found[1], values)
            expected[indices] = 0
            assert torch.equal(residual, expected)
        runs.append(residual)
    assert torch.equal(*runs)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_compile_for_a_gpu(dtype: torch.dtype) -> None:
    """The interpreter accepts more than the compiler does; this needs no GPU."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if "constexprs" not in inspect.signature(ASTSource).parameters:
        pytest.skip("the compiler of this old Triton is called in another way")

    from ggs.select import triton as select_triton

    double = dtype == torch.float64
    number, integer = ("fp64", "i64") if double else ("fp32", "i32")
    constants = {"INTEGER": tl.int64 if double else tl.int32, "MASK": 2**31 - 1, "SIZE": 2048}
    pointers = {
        select_triton._count: {"residual": number, "counts": "i32"},
        select_triton._move: {
            "residual": number, "ends": "i64", "candidates": "i64", "taken": number,
        },
    }  # fmt: skip
    for kernel, types in pointers.items():
        signature = {name: f"*{kind}" for name, kind in types.items()}
        signature |= {"numel": "i64", "threshold": integer}
        signature |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(kernel, signature=signature, constexprs=constants)
        assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]

"""The parts of gpu.py, each run in a process of its own."""

import argparse
import gc
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING
from unittest.mock import patch

import gpu_cifar10
import network
import selection
import step
import torch
import torch.distributed as dist
from gpu import MODELS, TINY_MODELS
from ratios import ratio_row, seconds_row, too_busy
from torch import Tensor

from ggs import wire
from ggs.select import select_reference
from ggs.wire import cpu_codec, torch_codec

if TYPE_CHECKING:
    from gpu import Results

ROOT = Path(__file__).resolve().parent.parent
TESTS_NEED = ("pytest", "pytest_timeout", "hypothesis", "docker")
"""Modules that tests/ needs and a machine for measurements may lack."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything is done."""

    device: str
    select: tuple[int, ...]
    """Lengths of the vectors that are selected from and coded."""
    selection: tuple[int, ...]
    """The same for the benchmark of selection."""
    rounds: int
    batch: int
    side: int
    """Of an image, in pixels."""


FULL = Sizes("cuda", (1, 255, 2048, 20_001, 1_000_003, 25_557_032), (25_557_032, 61_100_840),
             20, 32, 224)  # fmt: skip
TINY = Sizes("cpu", (1, 255, 2048, 5001), (100_000,), 2, 2, 64)


def run(options: argparse.Namespace, results: "Results") -> None:
    """Run the part that the options name."""
    sizes = TINY if options.dry_run else FULL
    kind, _, model = options.part.partition(" ")
    if kind == "tests":
        run_tests(sizes, results)
    elif kind == "equality":
        check_selection(sizes, results)
        check_codecs(sizes, results)
    elif kind == "selection":
        measure_selection(sizes, results)
    elif kind == "step":
        measured = step.measure(model, sizes.device, sizes.rounds)
        times = seconds_row(measured.times["ggs"])
        results.write(options.part, "GGS / Adam", **times, **measured.result())
    elif kind == "train":
        measure_training(model, sizes, results)
    elif kind == "memory":
        for name in TINY_MODELS if options.dry_run else MODELS:
            measure_memory(name, sizes, results)
    else:
        gpu_cifar10.train(options, results)


# ---- correctness -----------------------------------------------------------------------------------


def run_tests(sizes: Sizes, results: "Results") -> None:
    """The tests that need a GPU."""
    missing = [name for name in TESTS_NEED if find_spec(name) is None]
    if missing:
        results.write("tests", "cuda", skipped=f"not installed: {', '.join(missing)}")
        return
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py"))
             if "pytest.mark.cuda" in path.read_text()]  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(done.stdout, file=sys.stderr)
    last = done.stdout.strip().splitlines()[-1]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", last)}
    passed, failed = counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0)
    results.write("tests", "cuda", passed=passed, failed=failed, not_run=counts.get("skipped", 0))
    require(done.returncode == 0, f"pytest: exit status {done.returncode}")
    require(passed > 0 or sizes.device == "cpu", "no test found the GPU")


def counts_of(numel: int) -> list[int]:
    """How many elements to select of so many."""
    most = numel if numel <= 1_000_003 else numel // 10
    return sorted({0, 1, numel // 1000, numel // 100, most})


def check_selection(sizes: Sizes, results: "Results") -> None:
    """The kernels of a GPU against the reference, over steps in which the residual grows."""
    if find_spec("triton") is None:
        results.write("equality", "selection", skipped="this torch came without Triton")
        return
    from ggs.select.triton import TritonSelector

    for numel in sizes.select:
        updates, update = (
            selection.Updates(numel, sizes.device),
            torch.empty(numel, device=sizes.device),
        )
        for dtype in (torch.float32, torch.float64):
            for k in counts_of(numel):
                selector = TritonSelector(numel)
                residual = torch.zeros(numel, dtype=dtype, device=sizes.device)
                equal, by_kernels = True, 0
                for number in range(4):
                    updates.fill(update, number)
                    # The last step's values are few: many magnitudes are equal.
                    residual += update if number < 3 else (update * 3e3).round()
                    expected = residual.clone()
                    indices, values = select_reference(expected, k)
                    found = selector.select_(residual, k)
                    if (
                        found is not None
                    ):  # else the caller takes the reference's, nothing has changed
                        by_kernels += 1
                        equal &= same(found[0], indices) and same(found[1], values)
                        expected[indices] = 0
                    equal &= same(residual, expected)
                results.write("equality", "selection", numel=numel, k=k, dtype=str(dtype)[6:],
                              equal=equal, steps_by_kernels=by_kernels)  # fmt: skip
                require(equal, f"selection of {k} of {numel} differs from the reference")


def check_codecs(sizes: Sizes, results: "Results") -> None:
    """Messages that a GPU writes and reads against those of the CPU, byte for byte."""
    for numel in sizes.select:
        for k in counts_of(numel):
            numbers = torch.Generator().manual_seed(numel + k)
            indices = torch.randperm(numel, generator=numbers)[:k].sort().values
            values = torch.randn(k, generator=numbers)
            values += values.sign()  # as selected ones are: all beyond a threshold
            for form in wire.VALUES_FORMATS:
                given = values.double() if form == "fp64" else values
                with patch.object(wire, "_codec", return_value=cpu_codec):
                    reference, sent = wire.encode(indices, given, numel, form)
                with patch.object(wire, "_codec", return_value=torch_codec):
                    there = indices.to(sizes.device), given.to(sizes.device)
                    message, also_sent = wire.encode(*there, numel, form)
                    decoded = wire.decode(message, numel, k, form)
                equal = same(message.cpu(), reference) and same(also_sent.cpu(), sent)
                equal &= same(decoded[0].cpu(), indices) and same(decoded[1].cpu(), sent)
                results.write("equality", "codec", numel=numel, k=k, format=form, equal=equal)
                require(equal, f"{form} message of {k} of {numel} differs from the CPU's")


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal to the bit, signs of zeros aside."""
    return one.dtype == other.dtype and torch.equal(one, other)


def require(condition: bool, message: str) -> None:
    """Fail the part, once its row is written."""
    if not condition:
        raise SystemExit(message)


# ---- speed -----------------------------------------------------------------------------------------


def measure_selection(sizes: Sizes, results: "Results") -> None:
    """All methods of selection.py in turns."""
    for numel in sizes.selection:
        times, exact = selection.measure(numel, 0.001, sizes.device, sizes.rounds)
        for name, seconds in times.items():
            results.write("selection", name, numel=numel, **seconds_row(seconds),
                          **ratio_row(seconds, times["add_"]))  # fmt: skip
        figures = selection.result(times, exact, None)
        results.write("selection", "select / add_", numel=numel, **figures)


def measure_training(model: str, sizes: Sizes, results: "Results") -> None:
    """Training steps with one process and with two on one GPU, dense and GGS in turns."""
    part = f"train {model}"
    gpus = torch.cuda.device_count() if sizes.device == "cuda" else 0
    for processes, backend in ((1, "gloo"), (2, "gloo"), (2, "nccl")):
        shape = {"processes": processes, "backend": backend, "gpus": min(processes, gpus),
                 "batch": sizes.batch, "side": sizes.side}  # fmt: skip
        if backend == "nccl" and gpus < processes:
            why = f"NCCL refuses two processes on one GPU, and there are {gpus} GPUs here"
            results.write(part, "GGS / dense", **shape, skipped=why)
            continue
        times = train_together(model, processes, backend, sizes)
        dense = times["ddp" if processes > 1 else "none"]
        for name, seconds in times.items():
            results.write(part, name, **shape, **seconds_row(seconds), **ratio_row(seconds, dense))
        results.write(part, "GGS / dense", **shape, **ratio_row(times["ggs"], dense),
                      too_busy=too_busy(dense))  # fmt: skip


def train_together(
    model: str, processes: int, backend: str, sizes: Sizes
) -> dict[str, list[float]]:
    """Seconds of the slowest process in each round, by method."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(processes, get_context("spawn")) as pool,
    ):
        calls = [
            pool.submit(train, rank, processes, backend, folder, model, sizes)
            for rank in range(processes)
        ]
        found = [call.result() for call in calls]
    return {
        method: [max(turn) for turn in zip(*(times[method] for times in found), strict=True)]
        for method in found[0]
    }


def train(
    rank: int, processes: int, backend: str, folder: str, model: str, sizes: Sizes
) -> dict[str, list[float]]:
    """One process: seconds of its steps by method; "none" exchanges nothing, "ddp" is dense."""
    methods = ("none", "ggs", "ddp") if processes > 1 else ("none", "ggs")
    times: dict[str, list[float]] = {method: [] for method in methods}
    with group(rank, processes, backend, folder):
        device = sizes.device
        if device == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        else:
            torch.set_num_threads(1)
        steps = {method: trainer(method, model, sizes) for method in methods}
        warm_up = sizes.rounds // 2
        for number in range(warm_up + sizes.rounds):
            for method, do_step in steps.items():
                dist.barrier()
                started = perf_counter()
                do_step(number)
                if device == "cuda":
                    torch.cuda.synchronize()
                if number >= warm_up:
                    times[method].append(perf_counter() - started)
    return times


def trainer(method: str, model: str, sizes: Sizes) -> Callable[[int], None]:
    """A function that does steps of a method of network.py."""
    return network.trainer(method, model, sizes.device, sizes.batch, sizes.side)


@contextmanager
def group(rank: int, processes: int, backend: str, folder: str) -> Iterator[None]:
    """The process group of processes that meet in a folder."""
    store = dist.FileStore(str(Path(folder) / "store"), processes)
    dist.init_process_group(backend, store=store, rank=rank, world_size=processes)
    try:
        yield
    finally:
        dist.destroy_process_group()


def measure_memory(model: str, sizes: Sizes, results: "Results") -> None:
    """Peak of a training step's memory, model and optimizer included, one method after the other."""
    peaks: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder, group(0, 1, "gloo", folder):
        trainer("ggs", model, sizes)(0)  # what is compiled and loaded is not a method's
        for method in ("none", "ggs"):
            gc.collect()
            memory = step.Memory(sizes.device)
            do_step = trainer(method, model, sizes)
            for number in range(3):
                do_step(number)
            peaks[method] = memory.peak()
            del do_step
            results.write("memory", f"{model} {method}", peak_bytes=peaks[method],
                          batch=sizes.batch, side=sizes.side)  # fmt: skip
    results.write("memory", f"{model} GGS / dense",
                  ratio=round(peaks["ggs"] / max(peaks["none"], 1), 3))  # fmt: skip

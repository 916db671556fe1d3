"""`GGS.step()` against the plain optimizer's step, and the memory that GGS adds.

    python benchmarks/step.py [--model alexnet|resnet50|densenet121] [--rounds 20] [--profile]

Both step on parameters of the same shapes with the same gradients, which change from step to step, in
one process: the inner optimizer is `torch.optim.Adam(fused=True)`, selection, coding and adding to the
weights are GGS's share. They take turns, so that a neighbour's load hits both alike. The last line is
JSON: `step_ratio` (median over the rounds, its quartiles beside it), `too_busy` (why that says little, or
null), `extra_memory_ratio` (what GGS keeps and needs at its peak beside the parameters, gradients and Adam's
state, as a multiple of the parameters' size), `ns_per_element`.
`--profile` prints where the time of the GGS steps goes.
"""

import argparse
import cProfile
import ctypes
import json
import pstats
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
from ratios import Neighbours, ratio_row, too_busy
from torch import Tensor, nn

import ggs

PAGE = 4096
SETTLE = 20
"""Steps before the clock starts: the residual, and with it the threshold, grows fast at first."""


def resident_bytes() -> int:
    """Memory of this process that is backed by the machine's."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def fill(parameters: list[nn.Parameter], noise: Tensor, step: int) -> None:
    """Gradients with a persistent part and a part that moves, without the cost of fresh noise."""
    shift = step * 7919 % (len(noise) // 2)
    place = 0
    for parameter in parameters:
        assert parameter.grad is not None
        place = (place + 104_729) % (len(noise) // 8)
        flat, size = parameter.grad.view(-1), parameter.numel()
        for start in range(0, size, len(noise) // 4):
            part = flat[start : start + len(noise) // 4]
            part.copy_(noise[place : place + len(part)])
            part.add_(noise[place + shift % (len(noise) // 2) :][: len(part)], alpha=0.5)


def prepared(name: str, device: str) -> tuple[nn.Module, list[nn.Parameter]]:
    model: nn.Module = torchvision.models.get_model(name, num_classes=1000).to(device)
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    return model, parameters


def timed(optimizer: torch.optim.Optimizer, device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


class Memory:
    """Peak of what is allocated, above what was when the object was made."""

    def __init__(self, device: str) -> None:
        self._device = device
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._start = torch.cuda.memory_allocated()
        else:
            self.settle()
            self._start = resident_bytes()

    def settle(self) -> None:
        """Give back what was freed, which the C library keeps, and start the peak anew."""
        if self._device == "cpu":
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")

    def peak(self) -> int:
        if self._device == "cuda":
            return torch.cuda.max_memory_allocated() - self._start
        status = Path("/proc/self/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024 - self._start


@dataclass(frozen=True)
class Measured:
    """What one model's steps take."""

    tensors: int
    numel: int
    extra_memory: float
    """Beside parameters, gradients and Adam's state, as a multiple of the parameters' size."""
    times: dict[str, list[float]]
    """Seconds of "plain" and "ggs" in each round."""
    too_busy: str | None
    """Why the ratio says little, where it does."""

    def result(self) -> dict[str, Any]:
        """The figures by name."""
        return {
            "tensors": self.tensors,
            "numel": self.numel,
            **ratio_row(self.times["ggs"], self.times["plain"], "step_"),
            "extra_memory_ratio": round(self.extra_memory, 3),
            "ns_per_element": round(statistics.median(self.times["ggs"]) / self.numel * 1e9, 4),
            "too_busy": self.too_busy,
        }


def measure(
    name: str,
    device: str,
    rounds: int,
    density: float = 0.001,
    values: str = "fp32",
    profile: cProfile.Profile | None = None,
) -> Measured:
    """Steps of Adam and of GGS around Adam in turns, after those in which the residual settles."""
    noise = torch.randn(1 << 22, device=device, generator=torch.Generator(device).manual_seed(0))
    noise *= noise.abs().sqrt() * 1e-3
    _, plain_parameters = prepared(name, device)
    plain = torch.optim.Adam(plain_parameters, fused=True)
    model, parameters = prepared(name, device)
    inner = torch.optim.Adam(parameters, fused=True)
    numel = sum(p.numel() for p in parameters)
    warm_up(noise, device)
    for step in range(2):
        fill(parameters, noise, step)
        inner.step()  # so that Adam's own state is not taken for GGS's
    memory = Memory(device)
    optimizer = ggs.GGS(inner, model, density=density, values=values,
                        batchnorm="dense")  # fmt: skip
    memory.settle()
    for step in range(SETTLE):
        fill(parameters, noise, step)
        optimizer.step()
    extra = memory.peak() / (4 * numel)
    times: dict[str, list[float]] = {"plain": [], "ggs": []}
    turns = (("plain", plain, plain_parameters), ("ggs", optimizer, parameters))
    neighbours = Neighbours()
    for step in range(SETTLE, SETTLE + rounds + 2):
        for turn, method, stepped in turns:
            fill(stepped, noise, step)
            profiled = profile if turn == "ggs" and step >= SETTLE + 2 else None
            if profiled:
                profiled.enable()
            seconds = timed(method, device)
            if profiled:
                profiled.disable()
            if step >= SETTLE + 2:
                times[turn].append(seconds)
    busy = too_busy(times["plain"], neighbours.share())
    return Measured(len(parameters), numel, extra, times, busy)


def warm_up(noise: Tensor, device: str) -> None:
    """Compile the kernels on a small model, so that the compiler's memory is not taken for GGS's."""
    small = nn.Linear(512, 512).to(device)
    optimizer = ggs.GGS(torch.optim.Adam(small.parameters(), fused=True), small, density=0.001)
    for step in range(4):
        for parameter in small.parameters():
            parameter.grad = torch.zeros_like(parameter)
        fill(list(small.parameters()), noise, step)
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="alexnet")
    parser.add_argument("--density", type=float, default=0.001)
    parser.add_argument("--values", default="fp32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    profile = cProfile.Profile() if options.profile else None
    measured = measure(options.model, options.device, options.rounds, options.density,
                       options.values, profile)  # fmt: skip
    print(f"{options.model}: {measured.tensors} tensors, {measured.numel:,} parameters, "
          f"density {options.density}, {options.device}, {torch.get_num_threads()} threads")  # fmt: skip
    for name, seconds in measured.times.items():
        middle = statistics.median(seconds)
        print(
            f"  {name:6} {middle * 1e3:8.2f} ms  {middle / measured.numel * 1e9:6.3f} ns per element"
        )
    print(f"  extra memory {measured.extra_memory:.3f} x parameters")
    if measured.too_busy:
        print(f"  too busy to tell: {measured.too_busy}")
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    print(json.dumps({"model": options.model, **measured.result()}))


if __name__ == "__main__":
    main()

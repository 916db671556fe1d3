"""GPUs, their driver and PyTorch's build: what is there, and whether the three fit together."""

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with this machine, and the way out."""

    what: str
    remedy: str


@dataclass(frozen=True)
class GPU:
    """One GPU that PyTorch sees."""

    name: str
    memory: int
    """Bytes."""
    capability: tuple[int, int]


@dataclass(frozen=True)
class GPUs:
    """What the machine has and what PyTorch makes of it."""

    nvidia_devices: int = 0
    """Device files of NVIDIA GPUs."""
    amd: bool = False
    """Whether AMD's driver is there."""
    driver: str = ""
    """NVIDIA's kernel driver, such as 550.54.15, or an empty string."""
    driver_cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver library can run; None without a library."""
    build_cuda: str | None = None
    """The CUDA that PyTorch is built for; None for none."""
    build_hip: str | None = None
    """The same of ROCm."""
    architectures: tuple[str, ...] = ()
    """What PyTorch has kernels for: sm_80, compute_90, gfx942, …"""
    nccl: str = ""
    torch_sees: int | None = None
    """GPUs; None where PyTorch cannot even be imported."""
    gpus: tuple[GPU, ...] = ()
    error: str = ""
    """Why PyTorch cannot be imported or sees no GPU, if it says so."""

    def lines(self) -> dict[str, str]:
        """The facts as text."""
        parts = [self.driver] if self.driver else []
        if self.driver_cuda:
            parts.append("CUDA up to {}.{}".format(*self.driver_cuda))
        found = {
            "devices": f"{self.nvidia_devices} NVIDIA, {'AMD' if self.amd else 'no AMD'}",
            "driver": ", ".join(parts) or "none",
            "PyTorch": f"built for {self._build()}, sees "
            f"{'nothing: it cannot be imported' if self.torch_sees is None else self.torch_sees}",
            "NCCL": self.nccl or "none",
        }
        for number, gpu in enumerate(self.gpus):
            capability = ".".join(map(str, gpu.capability))
            found[f"GPU {number}"] = (
                f"{gpu.name}, {gpu.memory / (1 << 30):.1f} GiB, compute capability {capability}"
            )
        if self.error and (self.nvidia_devices or self.amd or self.torch_sees is None):
            found["error"] = self.error
        return found

    def _build(self) -> str:
        if self.build_cuda:
            return f"CUDA {self.build_cuda}"
        return f"ROCm {self.build_hip}" if self.build_hip else "the CPU"


def look_for_gpus() -> GPUs:
    """Look at the machine and import PyTorch."""
    devices = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdecimal()]
    kernel = Path("/proc/driver/nvidia/version")
    text = kernel.read_text(errors="replace") if kernel.exists() else ""
    release = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    try:
        import torch
    except Exception as error:  # whatever a broken installation raises
        found = GPUs(error=(str(error).splitlines() or [type(error).__name__])[0])
    else:
        found = _torch_view(torch.cuda.device_count())
    return replace(
        found,
        nvidia_devices=len(devices),
        amd=Path("/dev/kfd").exists(),
        driver=release[1] if release else "",
        driver_cuda=_driver_cuda(),
    )


def _torch_view(count: int) -> GPUs:
    import torch

    from ggs.dist.process_group import has_nccl

    properties = [torch.cuda.get_device_properties(number) for number in range(count)]
    error, nccl = "", ""
    if not count and torch.version.cuda is not None:
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except (RuntimeError, AssertionError) as problem:
            error = (str(problem).splitlines() or [""])[0]
    if has_nccl():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return GPUs(
        build_cuda=torch.version.cuda,
        build_hip=torch.version.hip,
        architectures=tuple(torch.cuda.get_arch_list()),
        nccl=nccl,
        torch_sees=count,
        gpus=tuple(GPU(p.name, p.total_memory, (p.major, p.minor)) for p in properties),
        error=error,
    )


def _driver_cuda() -> tuple[int, int] | None:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)):
        return None
    return version.value // 1000, version.value % 1000 // 10


def gpu_problems(found: GPUs, variables: Mapping[str, str]) -> list[Problem]:
    """What does not fit together, each with its remedy."""
    if found.torch_sees is None:
        return [
            Problem(
                f"PyTorch cannot be imported: {found.error}", "install it again: pip install torch"
            )
        ]
    problems = []
    if found.torch_sees == 0 and (found.nvidia_devices or found.amd):
        problems.append(_unseen(found, variables))
    for gpu in found.gpus:
        if found.build_cuda and not _has_kernels(gpu.capability, found.architectures):
            problems.append(
                Problem(
                    f"PyTorch has no kernels for {gpu.name} (compute capability "
                    f"{'.'.join(map(str, gpu.capability))}; it has {', '.join(found.architectures)})",
                    "install a PyTorch built for it, see pytorch.org/get-started",
                )
            )
    return problems


def _unseen(found: GPUs, variables: Mapping[str, str]) -> Problem:
    """Why PyTorch sees none of the GPUs that are there."""
    hiding = "HIP_VISIBLE_DEVICES" if found.amd and found.build_hip else "CUDA_VISIBLE_DEVICES"
    if hiding in variables and variables[hiding].strip() in ("", "-1", "none", "void"):
        return Problem(f"{hiding}={variables[hiding]} hides all GPUs", f"unset {hiding}")
    if found.amd and not found.nvidia_devices and not found.build_hip:
        return Problem(
            "there are AMD GPUs, but this PyTorch is not built for ROCm",
            "build the image for ROCm (docs/image.md), or install PyTorch's ROCm build",
        )
    if found.nvidia_devices and not found.build_cuda:
        return Problem(
            "there are NVIDIA GPUs, but this PyTorch is built for the CPU",
            "install PyTorch's CUDA build: pip install torch",
        )
    if found.nvidia_devices and found.driver_cuda is None:
        return Problem(
            "there are NVIDIA GPUs, but the driver library libcuda.so.1 is not in this container",
            "start it with NVIDIA's runtime: docker run --gpus all",
        )
    if found.driver_cuda and found.build_cuda:
        wanted = int(found.build_cuda.split(".")[0])
        if found.driver_cuda[0] < wanted:
            old = ".".join(map(str, found.driver_cuda))
            return Problem(
                f"driver {found.driver or 'unknown'} runs CUDA up to {old}, PyTorch is built for CUDA "
                f"{found.build_cuda}",
                f"update the driver, or build the image with a PyTorch for CUDA {found.driver_cuda[0]} "
                "(docs/image.md)",
            )
    return Problem(
        f"PyTorch sees none of the GPUs{': ' + found.error if found.error else ''}",
        "run nvidia-smi (rocm-smi on AMD) on the node; if it fails too, tell the administrator",
    )


def _has_kernels(capability: tuple[int, int], architectures: tuple[str, ...]) -> bool:
    """Binary code runs on the same major and a later minor version, PTX on anything later."""
    for name in architectures:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", name)
        if match:
            kind, version = match[1], (int(match[2]), int(match[3]))
            same_major = kind == "compute" or version[0] == capability[0]
            if same_major and version <= capability:
                return True
    return False

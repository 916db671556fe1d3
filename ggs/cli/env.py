"""``ggs env``: what this machine has, what is wrong with it, and what to do: text for a bug report.

    print(render(diagnose(os.environ)))

Whatever cannot be found out is told as such; a broken PyTorch or driver is a finding, not a failure.
"""

import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import psutil

from ggs._version import __version__
from ggs.cli.gpus import GPUs, Problem, gpu_problems, look_for_gpus
from ggs.cli.variables import is_harmless, public_value, shown_variables
from ggs.errors import GGSError
from ggs.launch import pai_names
from ggs.launch.environment import PAIEnvironment
from ggs.launch.network import interface_addresses, interface_names, is_local

PACKAGES = (
    "torch", "torchvision", "numpy", "numba", "triton", "pydantic", "safetensors", "httpx", "docker",
    "tensorboard", "vl-convert-python",
)  # fmt: skip
SMALL_SHM = 1 << 30
"""Bytes of /dev/shm below which data workers and NCCL run into bus errors."""


@dataclass
class Diagnosis:
    """Facts by section and name, and what is wrong."""

    sections: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def diagnose(variables: Mapping[str, str]) -> Diagnosis:
    """Look at everything. Takes some seconds: PyTorch is imported, and tried.

    Changes to ``/`` if the working directory has been deleted.
    """
    found = Diagnosis()
    here = _working_directory(found.problems)  # before PyTorch: oneMKL ends the process without one
    gpus = look_for_gpus()
    found.sections["versions"] = _versions()
    found.sections["machine"] = _machine(here)
    found.sections["GPUs"] = gpus.lines()
    found.sections["network"] = _network()
    found.sections["OpenPAI"] = _openpai(variables, gpus, found.problems)
    found.sections["tried"] = _trials(gpus, found.problems)
    found.sections["variables"] = shown_variables(variables)
    found.problems[:0] = gpu_problems(gpus, variables)
    found.problems += [*_shared_memory(), *_interfaces(variables)]
    return found


def render(found: Diagnosis) -> str:
    """The diagnosis as text."""
    lines = []
    for title, facts in found.sections.items():
        width = max(map(len, facts), default=0)
        lines += [title, *(f"  {name:{width}}  {text}" for name, text in facts.items()), ""]
    lines.append("problems" if found.problems else "no problem found")
    for problem in found.problems:
        lines += [f"  - {problem.what}", f"    {problem.remedy}"]
    return "\n".join(lines)


def _versions() -> dict[str, str]:
    found = {
        "ggs": f"{__version__} in {Path(__file__).parents[1]}",
        "Python": f"{platform.python_version()}, {sys.executable}",
        "system": f"{_system()}, Linux {platform.release()}, {' '.join(platform.libc_ver())}",
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _machine(here: Path | None) -> dict[str, str]:
    model = re.search(r"^model name\s*: (.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    limit = _read("/sys/fs/cgroup/memory.max") or _read(
        "/sys/fs/cgroup/memory/memory.limit_in_bytes"
    )
    bounded = limit.isdecimal() and int(limit) < 1 << 60
    quota = _read("/sys/fs/cgroup/cpu.max").split()
    cores = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores"
    if len(quota) == 2 and quota[0].isdecimal():
        cores += f", limited to {int(quota[0]) / int(quota[1]):g}"
    return {
        "CPU": f"{model[1] if model else platform.machine()}, {cores}",
        "memory": _gib(psutil.virtual_memory().total)
        + (f", limited to {_gib(int(limit))}" if bounded else ""),
        "/dev/shm": _shm_text(),
        "disk here": _disk_text(here),
    }


def _working_directory(problems: list[Problem]) -> Path | None:
    """Where we are; None, and in ``/`` from then on, where that has been deleted."""
    try:
        return Path.cwd()
    except OSError:
        os.chdir("/")
        problems.append(
            Problem("the working directory has been deleted", "change to one that exists: cd")
        )
        return None


def _disk_text(folder: Path | None) -> str:
    if folder is None:
        return "unknown: the working directory has been deleted"
    try:
        disk = shutil.disk_usage(folder)
    except OSError as error:  # as of a mount that is gone
        return f"unknown: {error.strerror}"
    return f"{_gib(disk.free)} of {_gib(disk.total)} free"


def _shm_size() -> int | None:
    try:
        return shutil.disk_usage("/dev/shm").total
    except OSError:
        return None


def _shm_text() -> str:
    size = _shm_size()
    return "absent" if size is None else _gib(size)


def _shared_memory() -> list[Problem]:
    size = _shm_size()
    if size is not None and size >= SMALL_SHM:
        return []
    return [
        Problem(
            f"/dev/shm is {_shm_text()}: data workers and NCCL may die with a bus error (exit code 135)",
            "job file: extraContainerOptions: {shmMB: 8192}; Docker: --shm-size 8g",
        )
    ]


def _network() -> dict[str, str]:
    stats = psutil.net_if_stats()
    addresses: dict[str, list[str]] = {name: [] for name in sorted(stats)}
    for address, name in interface_addresses().items():
        if ":" not in address and name in addresses:
            addresses[name].append(address)
    lines = {"host": f"{socket.gethostname()} is {_resolved(socket.gethostname())}"}
    for name, owned in addresses.items():
        state = "up" if stats[name].isup else "down"
        rate = f", {stats[name].speed:,} Mbit/s" if stats[name].speed else ""
        lines[name] = f"{', '.join(owned) or 'no IPv4 address'}, {state}{rate}"
    return lines


def _resolved(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return "an unknown name"


def _interfaces(variables: Mapping[str, str]) -> list[Problem]:
    """Named interfaces that are not there: gloo and NCCL fail late, with a C++ trace."""
    known, problems = interface_names(), []
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        for name in filter(None, variables.get(variable, "").split(",")):
            if name.startswith("^"):
                continue
            fits = {other for other in known if other.startswith(name.removeprefix("="))}
            exact = variable.startswith("GLOO") or name.startswith("=")
            if not fits or (exact and name.removeprefix("=") not in known):
                problems.append(
                    Problem(
                        f"{variable}={public_value(variable, variables[variable])} names no interface "
                        f"of this machine ({', '.join(sorted(known))})",
                        "unset it: ggs finds the interface that has the task's address",
                    )
                )
    return problems


def _openpai(variables: Mapping[str, str], gpus: GPUs, problems: list[Problem]) -> dict[str, str]:
    try:
        environment = PAIEnvironment.from_mapping(variables)
        if environment is None:
            return {"task": "none: this is no OpenPAI container"}
        return _task(environment, gpus, problems)
    except GGSError as error:
        problems.append(
            Problem(_without_values(str(error), variables), "see docs/troubleshooting.md")
        )
        return {"task": "one with a broken environment, see below"}


def _without_values(error: str, variables: Mapping[str, str]) -> str:
    """An error about variables, or only their names where it shows (NAME=value) what must not be."""
    odd = [
        f"{name}: {public_value(name, text)}"
        for name, text in variables.items()
        if not is_harmless(name, text) and re.search(rf"\b{re.escape(name)}=", error)
    ]
    return "; ".join(odd) or error


def _task(environment: PAIEnvironment, gpus: GPUs, problems: list[Problem]) -> dict[str, str]:
    role, index = environment.role, environment.index
    if role.gpus is not None and gpus.torch_sees is not None and role.gpus != gpus.torch_sees:
        less = gpus.torch_sees < role.gpus
        problems.append(
            Problem(
                f"the job file promises {role.gpus} GPU(s) to this task, PyTorch sees {gpus.torch_sees}",
                "tell the cluster's administrator which node this is"
                if less
                else "ggs uses the promised ones; the node's Docker runtime is not NVIDIA's, others "
                "may be using the same GPUs",
            )
        )
    own = environment.address(role, index)
    if not is_local(own):
        problems.append(
            Problem(
                f"{pai_names.HOST_IP.format(key=role.key, index=index)}={own} is no address of this machine",
                "the task was moved or the node has a wrong address: stop the job and submit it again",
            )
        )
    ports = environment.rendezvous_ports(environment.roles[0], 0)
    return {
        "job": public_value(pai_names.JOB_NAME, environment.job) or "unnamed",
        "task": f"{role.name}-{index}, attempt {environment.attempt}",
        "roles": ", ".join(f"{r.name} x {r.tasks}" for r in environment.roles),
        "address": own,
        "meets at": f"{environment.address(environment.roles[0], 0)}:{','.join(map(str, ports))}",
    }


def _trials(gpus: GPUs, problems: list[Problem]) -> dict[str, str]:
    """Small things that a training does, done."""
    if gpus.torch_sees is None:
        return {"nothing": "PyTorch cannot be imported"}
    trials: dict[str, tuple[Callable[[], None], str]] = {
        "compiled code": (_try_code, "reinstall numba and numpy"),
        "gloo": (_try_gloo, "set GLOO_SOCKET_IFNAME to the interface of the task's address"),
    }
    if gpus.torch_sees:
        trials["GPU"] = (_try_gpu, "compare driver, CUDA build and GPU above")
    results = {}
    for name, (trial, remedy) in trials.items():
        try:
            trial()
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            results[name] = f"fails: {reason}"
            problems.append(Problem(f"{name} fails: {reason}", remedy))
        else:
            results[name] = "works"
    return results


def _try_code() -> None:
    import torch

    from ggs.select import Selector
    from ggs.wire import decode, encode

    values = torch.linspace(-1, 1, 1000)
    indices, chosen = Selector(1000).select_(values.clone(), 10)
    message, sent = encode(indices, chosen, 1000, "fp32")
    again, received = decode(message, 1000, 10, "fp32")
    if not (torch.equal(again, indices) and torch.equal(received, sent)):
        raise RuntimeError("a message is not what was sent")


def _try_gloo() -> None:
    from ggs.dist.process_group import try_gloo

    variable = "GLOO_SOCKET_IFNAME"
    name = os.environ.get(variable, "")
    if not is_harmless(variable, name):  # gloo's error would show it
        raise RuntimeError(f"{variable}: {public_value(variable, name)}")
    try_gloo()


def _try_gpu() -> None:
    import torch

    matrix = torch.ones(64, 64, device="cuda")
    if float((matrix @ matrix)[0, 0]) != 64:
        raise RuntimeError("a matrix product is wrong")


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"

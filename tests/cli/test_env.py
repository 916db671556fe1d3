"""``ggs env``: the facts, what is found wrong, and that no secret gets into a bug report."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ggs.cli.env import diagnose, render
from ggs.cli.gpus import GPU, GPUs, gpu_problems, look_for_gpus
from tests.launch.variables import pai_variables

H200 = GPU("NVIDIA H200", 150_000_000_000, (9, 0))
HEALTHY = GPUs(
    nvidia_devices=1,
    driver="580.65.06",
    driver_cuda=(13, 0),
    build_cuda="13.0",
    architectures=("sm_75", "sm_80", "sm_90", "sm_100", "sm_120"),
    nccl="2.27.7",
    torch_sees=1,
    gpus=(H200,),
)
UNSEEN = replace(HEALTHY, torch_sees=0, gpus=())


def problem(found: GPUs, **variables: str) -> str:
    """The one problem, with its remedy."""
    (only,) = gpu_problems(found, variables)
    return f"{only.what}; {only.remedy}"


def test_what_fits_together_is_no_problem() -> None:
    assert gpu_problems(HEALTHY, {}) == []
    assert gpu_problems(replace(HEALTHY, driver_cuda=(13, 2)), {}) == []
    assert gpu_problems(GPUs(build_cuda="13.0", torch_sees=0, error="no driver"), {}) == []
    later = replace(HEALTHY, gpus=(GPU("RTX 4090", 24 << 30, (8, 9)),))
    assert gpu_problems(later, {}) == []  # code for 8.0 runs on 8.9


@pytest.mark.parametrize(
    ("found", "variables", "words"),
    [
        (replace(UNSEEN, driver_cuda=(12, 2), driver="535.104.05"), {},
         ["535.104.05 runs CUDA up to 12.2", "built for CUDA 13.0", "update the driver"]),
        (replace(UNSEEN, driver_cuda=None), {}, ["libcuda.so.1", "docker run --gpus all"]),
        (replace(UNSEEN, build_cuda=None), {}, ["built for the CPU", "pip install torch"]),
        (UNSEEN, {"CUDA_VISIBLE_DEVICES": ""}, ["CUDA_VISIBLE_DEVICES= hides all GPUs", "unset"]),
        (replace(UNSEEN, error="system not yet initialized"), {},
         ["system not yet initialized", "nvidia-smi"]),
        (GPUs(amd=True, build_cuda="13.0", torch_sees=0), {}, ["not built for ROCm"]),
        (replace(HEALTHY, gpus=(GPU("Tesla P100", 16 << 30, (6, 0)),)), {},
         ["no kernels for Tesla P100", "6.0", "sm_75"]),
        (replace(HEALTHY, torch_sees=None, gpus=(), error="libcudart.so.13: cannot open"), {},
         ["cannot be imported: libcudart.so.13", "install it again"]),
    ],
    ids=["old driver", "no library", "CPU build", "hidden", "init", "ROCm", "old GPU", "broken"],
)  # fmt: skip
def test_what_does_not_fit_is_told_with_a_way_out(
    found: GPUs, variables: dict[str, str], words: list[str]
) -> None:
    text = problem(found, **variables)
    for word in words:
        assert word in text


def test_this_machines_facts_are_pytorchs() -> None:
    found = look_for_gpus()
    assert found.torch_sees == torch.cuda.device_count() == len(found.gpus)
    assert found.build_cuda == torch.version.cuda


def test_the_report_of_a_healthy_task_of_openpai() -> None:
    resources = {"worker": f"{torch.cuda.device_count()},4,8192,0"}
    variables = pai_variables({"worker": 2}, "worker", 1, ports={"sync": "23000,23001"},
                              resources=resources)  # fmt: skip
    found = diagnose(variables)
    assert found.sections["OpenPAI"] == {
        "job": "ada~mnist",
        "task": "worker-1, attempt 0",
        "roles": "worker x 2",
        "address": "127.0.0.2",
        "meets at": "127.0.0.1:23000,23001,15080",
    }
    assert found.sections["tried"]["compiled code"] == "works"
    assert found.sections["tried"]["gloo"] == "works"
    assert "127.0.0.1" in found.sections["network"]["lo"]
    if shutil.disk_usage("/dev/shm").total >= 1 << 30:
        assert found.problems == []
        assert render(found).endswith("no problem found")


def test_what_is_wrong_with_a_task_is_told() -> None:
    variables = pai_variables(
        {"worker": 2}, "worker", 0, hosts=["203.0.113.9", "127.0.0.2"],
        resources={"worker": f"{torch.cuda.device_count() + 4},4,8192,0"},
    )  # fmt: skip
    text = render(diagnose({**variables, "GLOO_SOCKET_IFNAME": "eth9"}))
    problems = text[text.index("\nproblems") :]
    assert f"promises {torch.cuda.device_count() + 4} GPU(s) to this task" in problems
    assert "PAI_HOST_IP_worker_0=203.0.113.9 is no address of this machine" in problems
    assert "GLOO_SOCKET_IFNAME=eth9 names no interface" in problems


def test_a_broken_environment_is_a_finding() -> None:
    variables = pai_variables({"worker": 2}, "worker", 0)
    variables["PAI_TASK_ROLE_TASK_COUNT_worker"] = "-2"
    found = diagnose(variables)
    assert any("PAI_TASK_ROLE_TASK_COUNT_worker='-2'" in p.what for p in found.problems)
    assert "broken" in found.sections["OpenPAI"]["task"]


@pytest.mark.parametrize(
    "variable",
    [
        "PAI_TASK_ROLE_LIST",
        "PAI_TASK_ROLE_TASK_COUNT_worker",
        "PAI_RESOURCE_worker",
        "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX",
        "PAI_HOST_IP_worker_0",
        "PAI_PORT_LIST_worker_0_http",
        "PAI_PORT_LIST_worker_0_a-b",
        "PAI_JOB_NAME",
        "GLOO_SOCKET_IFNAME",
    ],
)
def test_no_finding_repeats_a_value_that_is_not_shown(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "bob:hunter2@proxy"
    monkeypatch.setenv(variable, value)  # gloo reads it there
    text = render(diagnose({**pai_variables({"worker": 2}, "worker", 0), variable: value}))
    assert "hunter2" not in text
    assert variable in text


def test_a_deleted_working_directory_is_a_finding(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'rmdir "$PWD" && exec "$0" "$@"', Path(sys.executable).parent / "ggs", "env"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\n  - the working directory has been deleted\n" in done.stdout
    assert "compiled code  works" in done.stdout


@pytest.mark.parametrize(
    ("variable", "names_none"),
    [
        ({"NCCL_SOCKET_IFNAME": "=lo"}, False),
        ({"NCCL_SOCKET_IFNAME": "l"}, False),  # NCCL takes a prefix
        ({"NCCL_SOCKET_IFNAME": "=l"}, True),
        ({"NCCL_SOCKET_IFNAME": "^docker"}, False),
        ({"GLOO_SOCKET_IFNAME": "lo"}, False),
        ({"GLOO_SOCKET_IFNAME": "l"}, True),
    ],
    ids=str,
)
def test_interfaces_are_named_as_each_library_reads_them(
    variable: dict[str, str], names_none: bool
) -> None:
    problems = [p for p in diagnose(variable).problems if "names no interface" in p.what]
    assert bool(problems) == names_none


def test_the_command_tells_all_in_one_text() -> None:
    variables = {**os.environ, "PAI_HEADER": "Bearer eyJhbGciOi"}
    done = subprocess.run(
        [sys.executable, "-m", "ggs.cli.main", "env"],
        env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for title in ("versions", "machine", "GPUs", "network", "OpenPAI", "tried", "variables"):
        assert f"\n{title}\n" in f"\n{done.stdout}"
    assert "eyJhbGciOi" not in done.stdout
    assert torch.__version__.split("+")[0] in done.stdout


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_too_little_shared_memory_is_told() -> None:
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    tried = subprocess.run(["unshare", "--mount", "sh", "-c", mount], capture_output=True)
    if tried.returncode:  # as for root in a container
        pytest.skip(f"cannot mount here: {tried.stderr.decode().strip()}")
    script = f'{mount} && exec "$0" -m ggs.cli.main env'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, sys.executable],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "/dev/shm is 0.1 GiB" in done.stdout
    assert "shmMB: 8192" in done.stdout

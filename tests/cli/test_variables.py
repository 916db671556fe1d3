"""What a text for the public shows of the environment: what is known to be harmless, and nothing else."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggs.cli.variables import is_known, public_value, shown_variables
from tests.launch.variables import pai_variables

SECRETS = {
    "HTTP_PROXY": "bob:hunter2@proxy:3128",
    "ALL_PROXY": "socks5://bob:hun/ter2@proxy:1",
    "https_proxy": "http://bob:hun@ter2@proxy:3128",
    "all_proxy": "socks5://hunter2:1/x@proxy:1",
    "NO_PROXY": "localhost,bob:hunter2",
    "PAI_TOKEN": "hunter2",
    "PAI_PWD": "hunter2",
    "PAI_PW": "hunter2",
    "PAI_SIG": "hunter2",
    "PAI_JWT": "eyJhunter2",
    "pai_job_name": "hunter2",
    "GGS_BEARER": "hunter2",
    "GGS_ARGS": "--password hunter2 --token=abc",
    "PAI_HEADER": "Bearer hunter2",
    "PAI_DATA": "https://hunter2.example.com/",
    "PAI_CALLBACK": "https://h/cb#access_token=hunter2",
    "PAI_CONFIG_JSON": '{"password": "hunter2"}',
    "PAI_CONNECTION": "Server=db;Pwd=hunter2",
    "PAI_JOB_NAME": "ada~mnist hunter2",
    "PAI_HOST_IP_worker_0": "hunter2",
    "PAI_worker_0_TOKEN_PORT": "hunter2",
    "PAI_DEFAULT_FS_URI": "wasb://hunter2@blob",
    "FC_STORAGE": "AccountName=a;AccountKey=hunter2==",
    "FC_TASK_INDEX": "0\nhunter2",
    "TORCH_HUB_GIT": "ghp_hunter2",
    "TORCH_HOME": "hunter2",
    "NCCL_DEBUG": "bob:hunter2",
    "NCCL_HUNTER": "hunter2",
    "OMP_NUM_THREADS": "hunter2",
}


@pytest.mark.parametrize(("name", "text"), SECRETS.items(), ids=list(SECRETS))
def test_a_secret_is_not_shown(name: str, text: str) -> None:
    (shown,) = shown_variables({name: text}).values()
    assert shown.startswith(f"set, {len(text)} characters, not shown: not ")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://proxy.example.com:3128", "http://proxy.example.com:3128"),
        ("http://proxy:3128/", "http://proxy:3128"),
        ("http://ada:hunter2@proxy:3128", "http://proxy:3128, credentials not shown"),
        ("https://ada@[::1]:3128", "https://[::1]:3128, credentials not shown"),
        ("https://h/cb#access_token=eyJ", "https://h, path not shown"),
        ("https://h?sig=abc%3D", "https://h, path not shown"),
        ("", ""),
    ],
)
def test_of_a_url_only_its_place_is_shown(url: str, shown: str) -> None:
    assert public_value("HTTP_PROXY", url) == shown


@given(
    st.text(), st.text(), st.sampled_from(["http://bob:{}@proxy:3128", "{}@proxy", "http://h/{}"])
)
def test_no_credentials_of_a_url_are_shown(before: str, after: str, form: str) -> None:
    assert "hunter2" not in public_value("https_proxy", form.format(f"{before}hunter2{after}"))


def _names() -> st.SearchStrategy[str]:
    prefixes = ["PAI_", "FC_", "GGS_", "NCCL_", "GLOO_", "CUDA_", "TORCH_", "OMP_", "MASTER_", ""]
    words = [
        "TOKEN",
        "NAME",
        "LIST",
        "PORT",
        "HOST",
        "IP",
        "worker",
        "RANK",
        "DEBUG",
        "X",
        "0",
        "PWD",
    ]
    parts = st.lists(st.sampled_from(words), min_size=1, max_size=5).map("_".join)
    return st.builds(str.__add__, st.sampled_from(prefixes), parts | st.from_regex(r"\A\w{1,20}\Z"))


@given(_names(), st.text(max_size=20), st.text(max_size=20))
def test_no_value_of_an_unknown_name_is_shown(name: str, before: str, after: str) -> None:
    shown = shown_variables({name: f"{before}hunter2{after}"})
    assert is_known(name) or "hunter2" not in "".join(shown.values())


@given(st.sampled_from(sorted(pai_variables({"worker": 1}, "worker", 0))), st.text(), st.text())
def test_no_value_of_a_known_name_is_shown_with_credentials(
    name: str, before: str, after: str
) -> None:
    assert "hunter2" not in public_value(name, f"{before}:hunter2@{after}")


def test_openpais_variables_are_shown() -> None:
    variables = pai_variables({"Worker_A": 2, "ps": 1}, "ps", 0, ports={"Syn_Port": "23000,23001"})
    variables |= {
        "PAI_HOST_IP_ps_1": "None",
        "PAI_USER_NAME": "ada",
        "PAI_VIRTUAL_CLUSTER": "default",
        "PAI_TASK_ROLE_COUNT": "2",
        "PAI_MIN_FAILED_TASK_COUNT_Worker_A": "-1",
        "PAI_TASK_ROLE_workera_HOST_LIST": "10.0.0.1:15080,10.0.0.2:15080",
        "PAI_TASK_ROLE_INSTANCES": "workera:0,workera:1,ps:0",
        "PAI_CURRENT_CONTAINER_IP": "10.0.0.1",
        "PAI_CURRENT_CONTAINER_PORT": "15080",
        "PAI_CONTAINER_SSH_PORT": "15022",
        "PAI_CONTAINER_HOST_Syn_Port_PORT_LIST": "23000,23001",
        "PAI_CONTAINER_HOST_PORT_LIST": "Syn_Port:23000,23001;ssh:15022;http:15080;",
        "PAI_WORK_DIR": "/workspace",
        "PAI_DEFAULT_FS_URI": "",
        "FC_FRAMEWORK_NAME": "9c0e1a9b6c6f4d3f8d8d0a7d1a7d2f11",
        "FC_POD_NAME": "9c0e1a9b6c6f4d3f8d8d0a7d1a7d2f11-ps-0",
        "FC_TASK_UID": "0f2b7c1e-8a1d-4f6e-9d57-000000000000",
    }
    assert shown_variables(variables) == variables


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RANK", "0"),
        ("MASTER_ADDR", "worker-0.example.com"),
        ("MASTER_ADDR", "fe80::1"),
        ("MASTER_PORT", "29500"),
        ("CUDA_VISIBLE_DEVICES", ""),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("CUDA_VISIBLE_DEVICES", "MIG-GPU-1a/7/0"),
        ("NVIDIA_VISIBLE_DEVICES", "GPU-8a5b3e0c-0000-1111-2222-333344445555"),
        ("NVIDIA_VISIBLE_DEVICES", "none"),
        ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"),
        ("TORCH_CUDA_ARCH_LIST", "8.0 8.6 9.0+PTX"),
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_SOCKET_IFNAME", "=eth0,eth1"),
        ("NCCL_IB_HCA", "^=mlx5_0:1,mlx5_1"),
        ("NCCL_IB_DISABLE", "1"),
        ("GLOO_SOCKET_IFNAME", "enp1s0"),
        ("OMP_NUM_THREADS", "4"),
        ("OMP_PLACES", "{0:4},{4:4}"),
        ("OMP_PLACES", "cores(4)"),
        ("MKL_THREADING_LAYER", "GNU"),
        ("LD_LIBRARY_PATH", "/usr/local/nvidia/lib:/usr/local/nvidia/lib64:"),
        ("LD_PRELOAD", "libjemalloc.so.2 /opt/lib/x.so"),
        ("no_proxy", "localhost,127.0.0.1, .svc,10.0.0.0/8,fd00::/8,h:80"),
    ],
)
def test_a_harmless_value_is_shown(name: str, text: str) -> None:
    assert shown_variables({name: text}) == {name: text}


def test_only_variables_that_matter_are_told_of() -> None:
    variables = {"PAI_JOB_NAME": "j", "NCCL_DEBUG": "INFO", "RANK": "0", "HOME": "/root",
                 "AWS_SECRET_ACCESS_KEY": "s", "https_proxy": "http://p"}  # fmt: skip
    assert list(shown_variables(variables)) == ["NCCL_DEBUG", "PAI_JOB_NAME", "RANK", "https_proxy"]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("PAI_TASK_ROLE_worker_HOST_LIST", "10.0.0.1:15080,"),
        ("PAI_CONTAINER_HOST_PORT_LIST", "a:1,22;"),
        ("PAI_TASK_ROLE_INSTANCES", "worker:1,"),
        ("NO_PROXY", "10.0.0.0/8,fd00::1,h:1,"),
        ("LD_LIBRARY_PATH", "/lib:"),
        ("NCCL_SOCKET_IFNAME", "eth0:1,"),
        ("HTTP_PROXY", "http://"),
    ],
)
def test_a_long_value_is_cut_and_takes_no_time(name: str, part: str) -> None:
    begun = time.process_time()
    assert public_value(name, part * 5000 + "@").endswith("not of the usual form")
    assert len(public_value(name, part * 5000 + re.sub(r"[,;:/]+$", "", part))) < 250
    assert time.process_time() - begun < 5

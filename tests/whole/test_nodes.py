"""Several nodes outside OpenPAI: machines whose own names resolve to 127.0.0.1, as most do.

Two network namespaces with a cable between them stand for two machines. They share this machine's name.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUM = """\
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(value)
print("the sum is", value.item())
dist.destroy_process_group()
"""


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def machines() -> Iterator[list[str]]:
    """Names of two network namespaces, of which the first has 10.212.0.1 and the second 10.212.0.2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the command ip")
    names = [f"ggs{os.getpid()}n{index}" for index in range(2)]
    try:
        for name in names:
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True)
            if made.returncode:
                pytest.skip(f"no network namespaces here: {made.stderr.decode().strip()}")
        ends = ("name", "cable0", "netns", names[1])
        command("ip", "-n", names[0], "link", "add", "cable0", "type", "veth", "peer", *ends)
        for index, name in enumerate(names):
            command("ip", "-n", name, "addr", "add", f"10.212.0.{index + 1}/24", "dev", "cable0")
            for interface in ("lo", "cable0"):
                command("ip", "-n", name, "link", "set", interface, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.fixture
def hosts_file(tmp_path: Path) -> Path:
    """An /etc/hosts in which this machine's name is 127.0.0.1, and first-node the first node's address."""
    path = tmp_path / "hosts"
    path.write_text(f"127.0.0.1 localhost {os.uname().nodename}\n10.212.0.1 first-node\n")
    return path


def run_on_all(
    machines: list[str], hosts_file: Path, line: list[list[str]], variables: list[dict[str, str]]
) -> list[tuple[int, str]]:
    """Exit code and output of each machine's command line, started together."""
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    processes = []
    for name, words, extra in zip(machines, line, variables, strict=True):
        inside = ["ip", "netns", "exec", name, "unshare", "-m", "sh", "-c", script, str(hosts_file)]
        processes.append(
            subprocess.Popen(
                [*inside, *words],
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **extra},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
    try:
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return [(process.returncode, out) for process, out in zip(processes, outputs, strict=True)]


@pytest.mark.root
def test_nodes_meet_where_their_names_are_loopback(
    machines: list[str], hosts_file: Path, tmp_path: Path
) -> None:
    script = tmp_path / "sum.py"
    script.write_text(SUM)
    line = [sys.executable, str(ROOT / "entrypoint.py"), "--script", str(script)]
    common = {"NNODES": "2", "MASTER_ADDR": "first-node", "MASTER_PORT": "23456"}
    results = run_on_all(
        machines, hosts_file, [line] * 2, [common | {"NODE_RANK": str(rank)} for rank in range(2)]
    )
    for code, out in results:
        assert code == 0, out
        assert "interface=cable0" in out
        assert "the sum is 3" in out


@pytest.mark.root
@pytest.mark.full
def test_torchruns_workers_meet_where_their_names_are_loopback(
    machines: list[str], hosts_file: Path, tmp_path: Path
) -> None:
    """The trainer in workers that torchrun has started: it tells gloo the interface itself."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    torchrun += ["--rdzv-backend=static", "--master-addr=10.212.0.1", "--master-port=23456"]
    trainer = [str(ROOT / "entrypoint.py"), "--steps", "2", "--run-dir", str(tmp_path / "run")]
    lines = [[*torchrun, f"--node-rank={rank}", *trainer] for rank in range(2)]
    for code, out in run_on_all(machines, hosts_file, lines, [{}, {}]):
        assert code == 0, out

"""``python entrypoint.py`` as OpenPAI runs it: real processes, sockets, signals and exit codes.

Every launch imports torch once in the launcher; most workers here do without it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from entrypoint import main
from ggs.launch import exit_codes
from ggs.launch.launcher import guard
from tests.full import in_full
from tests.launch.ports import free_ports
from tests.launch.variables import pai_variables

ROOT = Path(__file__).resolve().parents[2]
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start ``python entrypoint.py ARGS`` with some variables; its output goes to ``task-N.log``."""
    started: list[subprocess.Popen[str]] = []

    def run(*args: str, variables: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
        clean = {n: v for n, v in os.environ.items() if not n.startswith(("PAI_", "FC_"))}
        with open(tmp_path / f"task-{len(started)}.log", "w") as log:
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "entrypoint.py"), *args],
                env={**clean, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path), **(variables or {})},
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def log(tmp_path: Path, task: int = 0) -> list[str]:
    return (tmp_path / f"task-{task}.log").read_text().splitlines()


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "my script.py"
    path.write_text(text)
    return str(path)


def wait_for(what: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def is_gone(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def two_tasks(ports: list[int]) -> list[dict[str, str]]:
    declared = {"SynPort": ",".join(map(str, ports))}
    attempt = f"0_{ports[0]}"
    return [
        pai_variables({"worker": 2}, "worker", i, ports=declared, attempt=attempt) for i in (0, 1)
    ]


# Writes the process ids of the worker and of a child of its own; then it would run for ever.
SLEEPER = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"])
folder = pathlib.Path(sys.argv[1])
partial = folder / f"partial-{os.environ['RANK']}"
partial.write_text(f"{os.getpid()} {child.pid}")
partial.rename(folder / f"rank-{os.environ['RANK']}")
while True:
    time.sleep(0.1)
"""


def sleepers(folder: Path, count: int) -> dict[int, list[int]]:
    """Process ids (worker, child) by rank, as soon as all workers run."""
    wait_for(lambda: len(list(folder.glob("rank-*"))) == count)
    files = folder.glob("rank-*")
    return {
        int(f.name.removeprefix("rank-")): [int(p) for p in f.read_text().split()] for f in files
    }


# The real trainer, but for a file about each replica's final parameters, beside the script. Lines of several
# workers in one log would mix: unbuffered, every argument of print and the line's end are written apart.
RECORDING_TRAINER = """
import hashlib, json, os, pathlib, sys
from ggs.train import config, loop, worker

class Recording(loop.Trainer):
    def run(self):
        super().run()
        digest = hashlib.sha256()
        for name, parameter in self.model.named_parameters():
            digest.update(name.encode() + parameter.detach().numpy().tobytes())
        names = ["RANK", "LOCAL_RANK", "NODE_RANK", "MASTER_PORT"]
        found = {**{n: int(os.environ[n]) for n in names}, "weights": digest.hexdigest()}
        replica = pathlib.Path(__file__).with_name(f"replica-{found['RANK']}.json")
        replica.write_text(json.dumps(found))

worker.Trainer = Recording
worker.main(config.parse(sys.argv[1:]))
"""


@pytest.mark.usefixtures("_compiled")
def test_two_tasks_of_two_workers_end_bit_identical(start: Start, tmp_path: Path) -> None:
    """With a foreign listener on the first declared port, and task 1 seconds before task 0."""
    ports = free_ports(2)
    tasks = two_tasks(ports)
    path, run = script(tmp_path, RECORDING_TRAINER), tmp_path / "run"
    flags = (
        f"--steps 12 --batch-size 16 --density 0.01 --density-warmup 4steps --run-dir {run}".split()
    )
    line = ["--workers", "2", "--script", path, *flags]
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", ports[0]))
        foreign.listen()
        second = start(*line, variables=tasks[1])
        wait_for(lambda: any("waiting for task worker-0" in text for text in log(tmp_path)))
        first = start(*line, variables=tasks[0])
        assert [first.wait(), second.wait()] == [0, 0]
    logs = {1: log(tmp_path, 0), 0: log(tmp_path, 1)}
    assert logs[0][0].startswith("ggs: task=worker-0(2) ranks=0-1(4) master=127.0.0.1:")
    assert logs[1][0].startswith("ggs: task=worker-1(2) ranks=2-3(4) master=127.0.0.1:")
    replicas = [json.loads(path.read_text()) for path in tmp_path.glob("replica-*.json")]
    replicas.sort(key=lambda replica: int(replica["RANK"]))
    assert [(r["NODE_RANK"], r["LOCAL_RANK"]) for r in replicas] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {replica["MASTER_PORT"] for replica in replicas} == {ports[1]}
    assert len({replica["weights"] for replica in replicas}) == 1
    assert json.loads((run / "summary.json").read_text())["world_size"] == 4


def test_a_killed_worker_ends_the_others_and_their_children(start: Start, tmp_path: Path) -> None:
    launcher = start("--workers", "2", "--script", script(tmp_path, SLEEPER), str(tmp_path))
    workers = sleepers(tmp_path, 2)
    os.kill(workers[1][0], signal.SIGKILL)
    assert launcher.wait(120) == exit_codes.RETRY
    assert (
        log(tmp_path)[-1]
        == "ggs: rank 1 on task local-0: killed by SIGKILL; out of memory, or by hand"
    )
    assert all(is_gone(process) for pair in workers.values() for process in pair)


def test_a_killed_launcher_leaves_no_worker(start: Start, tmp_path: Path) -> None:
    launcher = start("--workers", "2", "--script", script(tmp_path, SLEEPER), str(tmp_path))
    workers = sleepers(tmp_path, 2)
    launcher.kill()
    launcher.wait()
    try:
        wait_for(lambda: all(is_gone(worker) for worker, _ in workers.values()))
    finally:
        for _, child in workers.values():  # a script's own children are the script's to bind
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, *in_full(signal.SIGINT)])
def test_a_signal_stops_all(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    launcher = start("--workers", "2", "--script", script(tmp_path, SLEEPER), str(tmp_path))
    workers = sleepers(tmp_path, 2)
    launcher.send_signal(number)
    assert launcher.wait(120) == 128 + number  # outside OpenPAI
    assert log(tmp_path)[1:] == [f"ggs: stopped by {number.name}"]
    assert all(is_gone(process) for pair in workers.values() for process in pair)


def test_a_signal_ends_the_wait_for_other_tasks(start: Start, tmp_path: Path) -> None:
    path = script(tmp_path, SLEEPER)
    launcher = start("--script", path, str(tmp_path), variables=two_tasks(free_ports(1))[1])
    wait_for(lambda: any("waiting for task worker-0" in text for text in log(tmp_path)))
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(120) == exit_codes.RETRY
    assert log(tmp_path)[-1] == "ggs: stopped by SIGTERM"


# Two workers share a log, and print would write a line in pieces.
FAILING = """
import os, sys, time
from ggs.errors import ConfigurationError
names = ("NODE_RANK", "LOCAL_RANK", "RANK", "WORLD_SIZE")
sys.stdout.write(" ".join(os.environ[name] for name in names) + "\\n")
if os.environ["RANK"] == "2":
    if sys.argv[1] == "user":
        raise ConfigurationError("lr=-1 is below 0")
    raise OSError("boom")
while True:
    time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("kind", "code", "last"),
    [
        ("user", exit_codes.NEVER_RETRY, ["ggs: rank 2 on task worker-0: lr=-1 is below 0"]),
        (
            "bug",
            exit_codes.RETRY,
            [
                '    raise OSError("boom")',
                "OSError: boom",
                "ggs: rank 2 on task worker-0: OSError: boom",
            ],
        ),
    ],
)
def test_a_failure_ends_all_tasks_with_its_cause_and_code(
    start: Start, tmp_path: Path, kind: str, code: int, last: list[str]
) -> None:
    """In a job of two roles with one and two workers a task: ranks follow the order of the roles."""
    resources = {"chief": "1,4,8192,0", "worker": "2,4,8192,0"}
    ports = {"SynPort": str(free_ports(1)[0])}
    line = ["--device", "cpu", "--script", script(tmp_path, FAILING), kind]
    launchers = [
        start(
            *line,
            variables=pai_variables(
                {"chief": 1, "worker": 1}, role, 0, ports=ports, resources=resources
            ),
        )
        for role in ("chief", "worker")
    ]
    assert [launcher.wait(120) for launcher in launchers] == [code, code]
    for task, ranks in enumerate([{"0 0 0 3"}, {"1 0 1 3", "1 1 2 3"}]):
        lines = log(tmp_path, task)
        assert "1 1 2 3" in log(tmp_path, 1)
        assert ranks >= {text for text in lines if text.endswith(" 3")}
        assert lines[-len(last) :] == last
        assert any(text.startswith("ggs: rank 2 on task worker-0:") for text in lines)
        assert not any("ggs/launch" in text or "runpy" in text for text in lines)


SLOW_TO_LEAVE = """
import atexit, os, pathlib, time
leaves = pathlib.Path(__file__).with_name("leaves")

def leave():
    leaves.touch()
    time.sleep(60)

if os.environ["RANK"] == "1":
    atexit.register(leave)
    raise OSError("boom")
while not leaves.exists():
    time.sleep(0.05)
os._exit(5)
"""


def test_a_recorded_failure_counts_though_its_worker_had_to_be_stopped(
    start: Start, tmp_path: Path
) -> None:
    """It is on its way out when another worker, which it has left alone, ends for good."""
    launcher = start(
        "--workers", "2", "--device", "cpu", "--script", script(tmp_path, SLOW_TO_LEAVE)
    )
    assert launcher.wait(120) == exit_codes.RETRY
    assert log(tmp_path)[-1].endswith("OSError: boom")


def test_a_killed_task_ends_the_other(start: Start, tmp_path: Path) -> None:
    path = script(tmp_path, SLEEPER)
    launchers = [
        start("--script", path, str(tmp_path), variables=t) for t in two_tasks(free_ports(1))
    ]
    workers = sleepers(tmp_path, 2)
    launchers[0].kill()
    assert launchers[1].wait(120) == exit_codes.RETRY
    assert log(tmp_path, 1)[-1] == "ggs: task worker-0: gone without a word"
    wait_for(lambda: all(is_gone(worker) for worker, _ in workers.values()))
    os.kill(workers[0][1], signal.SIGKILL)


LEAVING = """
import os, subprocess, sys
if sys.argv[1] == "upload":
    command = "sleep 1; echo whole > '" + sys.argv[2] + "'"
    subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True)
else:
    sys.exit(int(sys.argv[1]))
"""


def test_what_workers_leave_running_is_waited_for(start: Start, tmp_path: Path) -> None:
    checkpoint = tmp_path / "it's a checkpoint"
    checkpoint_argument = str(checkpoint).replace("'", "'\\''")
    launcher = start("--script", script(tmp_path, LEAVING), "upload", checkpoint_argument)
    assert launcher.wait(120) == 0
    assert checkpoint.read_text() == "whole\n"


@pytest.mark.parametrize(
    ("ended_with", "passed_on"), [(3, 3), pytest.param(143, 1, marks=pytest.mark.full)]
)
def test_a_scripts_exit_code(start: Start, tmp_path: Path, ended_with: int, passed_on: int) -> None:
    assert start("--script", script(tmp_path, LEAVING), str(ended_with)).wait(120) == passed_on
    assert log(tmp_path)[-1].startswith("ggs: rank 0 on task local-0: ended with exit code")


def test_under_torchrun_the_script_runs_in_this_process(start: Start, tmp_path: Path) -> None:
    path = script(tmp_path, "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])")
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    assert start("--script", path, variables=variables).wait(120) == 0
    assert log(tmp_path) == ["1 2"]


WRONG_SETTINGS = [
    ("--density 0", "density"),
    ("--density -1", "density"),
    ("--density 2", "density"),
    ("--density abc", "density"),
    ("--density nan", "density"),
    ("--model lenet7", "lenet7"),
    ("--model no.such.module:build", "no.such.module"),
    ("--data mnist6k", "data"),
    ("--data imagefolder", "data"),
    ("--data cifar10 --data-dir /nowhere", "/nowhere"),
    ("--optimizer adamm", "adamm"),
    ("--optimizer lbfgs", "LBFGS"),
    ("--lr -1", "lr"),
    ("--method dgcc", "method"),
    ("--epochs 0", "epochs"),
    ("--epochs 1.x", "epochs"),
    ("--steps -5", "steps"),
    ("--batch-size 0", "batch_size"),
    ("--batch-size many", "batch_size"),
    ("--workers 0", "workers"),
    ("--workers two", "workers"),
    ("--seed -1", "seed"),
    ("--backend mpi", "backend"),
    ("--backend nccl --device cpu", "nccl"),
    ("--rendezvous-timeout 0", "rendezvous_timeout"),
    ("--rendezvous-timeout soon", "rendezvous_timeout"),
    ("--densty 0.1", "densty"),
    ("0.001", "0.001"),
    ("--density", "density"),
    ("--config /nowhere.yaml", "/nowhere.yaml"),
    ("--config .", "config"),
    ("--roles worker", "roles"),
]


@pytest.mark.parametrize(("line", "message"), WRONG_SETTINGS)
def test_a_wrong_setting_is_one_line(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guard(lambda: main(line.split())) == exit_codes.USAGE
    output = capsys.readouterr()
    assert output.err.startswith("ggs: ")
    assert output.err.count("\n") == 1
    assert message in output.err
    assert output.out == ""


SELF = "--script entrypoint.py"  # any file: it does not come to running it


def without(variables: dict[str, str], *words: str) -> dict[str, str]:
    return {n: v for n, v in variables.items() if not any(word in n for word in words)}


@pytest.mark.parametrize(
    ("line", "change", "message"),
    [
        ("--density 2", {}, "density"),
        (SELF, {"PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": "7"}, "=7 is out of range"),
        (SELF, {"PAI_CURRENT_TASK_ROLE_NAME": "ps"}, "'ps' is not one of PAI_TASK_ROLE_LIST"),
        (SELF, {"PAI_RESOURCE_worker": "99,8,8192,0"}, "99 GPUs, but PyTorch"),
        (SELF, {"no": "PORT"}, "have no port to meet on"),
    ],
)
def test_a_wrong_start_is_one_line_through_the_real_entrypoint(
    start: Start, tmp_path: Path, line: str, change: dict[str, str], message: str
) -> None:
    variables = pai_variables({"worker": 2}, "worker", 0, ports={"SynPort": "20001"}) | change
    launcher = start(*line.split(), variables=without(variables, *filter(None, [change.get("no")])))
    code = launcher.wait(120)
    # A GPU that is missing under a PyTorch with GPU support may be the node's fault.
    assert code in ({1, 136} if "GPU" in message else {136})
    assert len(log(tmp_path)) == 1
    assert message in log(tmp_path)[0]

"""The promises of SECURITY.md that no other test holds, each on real processes and files.

Elsewhere: token files (tests/pai/client/test_clusters.py), TLS, masking and redirects
(tests/pai/client/test_client.py), masked submissions (tests/pai/client/test_submission.py), damaged input
(the fuzz tests), processes left behind (tests/whole/test_entrypoint.py).
"""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main

from ggs.errors import GGSError
from ggs.pai.cli.main import app
from ggs.train.arguments import build
from ggs.train.checkpoint import files
from ggs.train.config import TrainConfig
from ggs.train.worker import train
from tests.pai.local.jobs import bash_job, processes_with, run_job

ROOT = Path(__file__).resolve().parent.parent
SECRET = "s3cr3t-Tok3n-of-nobody"


def config_for(folder: Path, **settings: Any) -> TrainConfig:
    values = {
        "run_dir": folder / "run", "checkpoint_dir": folder / "checkpoints", "steps": 2, "batch_size": 8,
        "evaluate_every": 0, "eval_batch_size": 1000, "device": "cpu", "threads": 1, **settings,
    }  # fmt: skip
    return build(TrainConfig, values)


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


@pytest.mark.parametrize("kind", ["pickle", "torch"])
@pytest.mark.parametrize("name", ["rank-00000.pt", "replicated.pt"])
def test_a_pickle_in_a_checkpoint_is_refused_and_not_run(
    tmp_path: Path, kind: str, name: str
) -> None:
    """Its manifest says that the file is as it should be: whoever can write one can write the other."""
    train(config_for(tmp_path, steps=1), torch.device("cpu"), None)
    [folder] = files.checkpoints(tmp_path / "checkpoints")
    mark = tmp_path / "mark"
    if kind == "pickle":
        (folder / name).write_bytes(pickle.dumps(Bomb(mark)))
    else:
        torch.save(Bomb(mark), folder / name)
    manifest = files.read_manifest(folder)
    content = (folder / name).read_bytes()
    entry = files.FileRecord(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    files.write_manifest(
        folder, manifest.model_copy(update={"files": {**manifest.files, name: entry}})
    )
    with pytest.raises(GGSError, match="none of the 1 checkpoints"):
        train(config_for(tmp_path, run_dir=tmp_path / "again"), torch.device("cpu"), None)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()  # so it would have been seen


@pytest.fixture
def training(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Two workers of this machine in the middle of a training, with secrets in their environment."""
    flags = (
        f"--workers 2 --steps 100000 --batch-size 8 --eval-batch-size 1000 --evaluate-every 2steps "
        f"--log-every 1 --run-dir {tmp_path}/run --checkpoint-dir {tmp_path}/checkpoints "
        "--checkpoint-every 2steps --device cpu"
    )
    names = ("PAI_TOKEN", "PAI_SECRET", "AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "entrypoint.py"), *flags.split()],
            env={**os.environ, "OMP_NUM_THREADS": "1", **dict.fromkeys(names, SECRET)},
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            deadline = time.monotonic() + 240
            while not files.checkpoints(tmp_path / "checkpoints"):
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield process
        finally:
            process.terminate()
            process.wait(120)


def family(root: int) -> list[int]:
    """A process and its descendants."""
    children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
    return [root, *(each for child in children for each in family(int(child)))]


def listening(processes: list[int]) -> set[str]:
    """Addresses, as hexadecimal digits of the kernel, on which any of the processes listens."""
    own = set()
    for process in processes:
        for handle in Path(f"/proc/{process}/fd").iterdir():
            try:
                target = os.readlink(handle)
            except OSError:
                continue
            if target.startswith("socket:["):
                own.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            waits = fields[3] == ("0A" if table.startswith("tcp") else "07")
            if waits and fields[9] in own:
                found.add(fields[1].partition(":")[0])
    return found


LOOPBACK = {
    "0100007F",
    "0000000000000000FFFF00000100007F",
    "00000000000000000000000001000000",
}
"""127.0.0.1, the same as an IPv6 address, and ::1."""


def test_a_local_training_listens_to_this_machine_only_and_tells_no_secret(
    training: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    processes = family(training.pid)
    assert len(processes) >= 3
    found = listening(processes)
    assert found  # the workers do meet
    assert found <= LOOPBACK
    for process in processes:
        assert SECRET.encode() not in Path(f"/proc/{process}/cmdline").read_bytes()
    assert SECRET.encode() in Path(f"/proc/{training.pid}/environ").read_bytes()
    training.terminate()  # it replaces its checkpoints all the time: folders would go while they are read
    training.wait(120)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("tfevents" in path.name for path in written)
    assert any(path.name == files.MANIFEST for path in written)
    for path in written:
        assert SECRET.encode() not in path.read_bytes(), path


def test_one_worker_alone_listens_to_nobody(tmp_path: Path) -> None:
    train(config_for(tmp_path), torch.device("cpu"), None)
    script = "import os, sys, time; print('up', flush=True); time.sleep(60)"
    (tmp_path / "wait.py").write_text(script)
    with subprocess.Popen(
        [sys.executable, str(ROOT / "entrypoint.py"), "--script", str(tmp_path / "wait.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            assert listening(family(process.pid)) <= LOOPBACK
        finally:
            process.terminate()


NASTY = [
    "$(touch x)",
    "`touch x`",
    "'; touch x; '",
    '"; touch x; "',
    "a\nb; touch x\n",
    "-n",
    "*",
    "\\",
    "",
]


def test_a_scripts_name_and_arguments_reach_it_untouched(tmp_path: Path) -> None:
    script = tmp_path / 'it\'s $(touch x) "mine".py'
    script.write_text("import json, sys; print(json.dumps(sys.argv))")
    done = subprocess.run(
        [sys.executable, str(ROOT / "entrypoint.py"), "--script", str(script), *NASTY],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [str(script), *NASTY]
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("value", [text for text in NASTY if text != "-n"])
def test_no_shell_reads_a_jobs_names_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """Only ``commands`` are for the shell. A value is refused, or arrives as it is."""
    monkeypatch.chdir(tmp_path)
    for place in ({"name": value}, {"description": value}, {"contributor": value}):
        job = bash_job("echo ran", instances=1, **place)
        with suppress(GGSError):
            run_job(job, tmp_path / f"run-{next(iter(place))}", "process")
        assert not list(tmp_path.rglob("x")), place


def test_a_jobs_secret_is_in_no_process_list(tmp_path: Path) -> None:
    """The task itself looks for it, with a pattern that does not find itself."""
    pattern = f"[{SECRET[0]}]{SECRET[1:]}"
    job = bash_job(
        "export WORD='<% $secrets.word %>'",
        f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '{pattern}' || true",
        "echo ${#WORD}",
        instances=1,
        secrets={"word": SECRET},
    )
    result = run_job(job, tmp_path, "process")
    assert result.code == 0
    assert result.log(0, "worker", 0).splitlines() == ["0", str(len(SECRET))]
    assert not processes_with(SECRET)


def test_no_command_takes_a_secret_on_its_command_line() -> None:
    """Others of the machine can read those. Tokens and passwords come from variables, files and prompts."""
    commands = [typer.main.get_command(app)]
    options = set()
    while commands:
        command: Any = commands.pop()
        commands += getattr(command, "commands", {}).values()
        options |= {
            option
            for each in command.params
            for option in each.opts
            if each.metavar != "FILE"  # the name of a file that holds a secret is none
        }
    assert "--cluster" in options
    assert not [o for o in options if any(word in o for word in ("token", "passw", "secret"))]

"""Tasks as process groups of this machine, each at a loopback address of its own. Linux only."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ggs.pai.job.model import DockerImage
from ggs.pai.local.engine import CannotRun, Exited, Launch, Output, Report
from ggs.pai.local.runtime_scripts import RUNTIME_FOLDER, environment_script
from ggs.pai.local.task_environment import TaskId

# What a launcher or another cluster may have left in the caller's environment; a container would not
# inherit it.
_FOREIGN = re.compile(
    r"(PAI|FC|HIVED|NCCL|GLOO|TORCHELASTIC|OMPI|PMI|SLURM|KUBERNETES)_.*|MASTER_(ADDR|PORT)"
    r"|((GROUP_|LOCAL_|ROLE_|NODE_)?(RANK|WORLD_SIZE))|NNODES|(NVIDIA|CUDA)_VISIBLE_DEVICES"
    r"|RUNTIME_LOG_PIPE"
)


@dataclass(frozen=True)
class _RunningProcess:
    process: subprocess.Popen[bytes]
    pod_uid: str
    waiter: threading.Thread


class ProcessEngine:
    """Runs tasks without containers: no image, no limits on memory and CPU, no mounts."""

    def __init__(self, report: Report, *, keep: bool) -> None:
        self._report = report
        self._keep = keep
        self._folder = Path()
        self._running: dict[TaskId, _RunningProcess] = {}

    def prepare(self, images: Sequence[DockerImage]) -> None:
        if shutil.which("bash") is None:
            raise CannotRun("there is no bash on this machine; every task's commands need one")

    def open(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="local-openpai-"))

    def start(self, launch: Launch) -> str:
        folder = Path(self.runtime_dir(launch))
        for name, text in launch.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            mounts = {**launch.mounts, RUNTIME_FOLDER: folder}
            path.write_text(_with_mounts(text, mounts) if name.endswith(".sh") else text)
            path.chmod(0o700)
        process = subprocess.Popen(
            ["/bin/bash", str(folder / "runtime"), launch.token],
            env=_base_environment(launch),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        waiter = threading.Thread(target=self._follow, args=(launch, process), daemon=True)
        self._running[launch.task] = _RunningProcess(process, launch.pod_uid, waiter)
        waiter.start()
        number = len(self._running) + 1  # 127.0.0.1 is everyone's
        return f"127.0.{number // 256}.{number % 256}"

    def _follow(self, launch: Launch, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        reader = threading.Thread(target=self._read, args=(launch.task, process), daemon=True)
        reader.start()
        code = process.wait()
        _kill_everything(process.pid, launch.pod_uid)
        reader.join()
        process.stdout.close()
        self._report(Exited(launch.task, 128 - code if code < 0 else code, out_of_memory=False))

    def _read(self, task: TaskId, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._report(Output(task, line.decode(errors="replace").rstrip("\n")))

    def work_dir(self, launch: Launch) -> str:
        return os.getcwd()

    def runtime_dir(self, launch: Launch) -> str:
        return str(self._folder / f"{launch.attempt}-{launch.task.role}-{launch.task.index}")

    def release(self, launch: Launch, environment: Mapping[str, str]) -> None:
        folder = Path(self.runtime_dir(launch))
        (folder / "runtime.d/runtime_env.sh").write_text(environment_script(environment))
        (folder / "go").touch()

    def kill(self, task: TaskId) -> None:
        running = self._running[task]
        if running.process.poll() is None:
            _kill_everything(running.process.pid, running.pod_uid)

    def end_attempt(self) -> None:
        for task in self._running:
            self.kill(task)
        for running in self._running.values():
            running.waiter.join()
        self._running.clear()

    def close(self) -> None:
        self.end_attempt()
        if not self._keep and self._folder.is_absolute():
            shutil.rmtree(self._folder, ignore_errors=True)

    def how_to_remove(self) -> str:
        return f"kept: rm -r {self._folder}"


def port_is_free(address: str, port: int) -> bool:
    """Whether a program can listen there now: what OpenPAI's init container looks at."""
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _base_environment(launch: Launch) -> dict[str, str]:
    """What stands for the image's ENV: the caller's, without other launchers' variables."""
    environment = {name: text for name, text in os.environ.items() if not _FOREIGN.fullmatch(name)}
    path = os.environ.get("PATH", os.defpath)
    return environment | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{path}",
        "PYTHONUNBUFFERED": "1",
        "FC_POD_UID": launch.pod_uid,
        # A container sees only its own GPUs; a process has to be told.
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, launch.gpus)),
    }


def _with_mounts(script: str, mounts: Mapping[str, Path]) -> str:
    """``script`` with the folders that stand for storages in the place of their mount points."""
    for target, folder in mounts.items():
        replacement = str(folder).replace("\\", r"\\")
        script = re.sub(rf"(?<![\w./-]){re.escape(target)}(?![\w-])", replacement, script)
    return script


def _kill_everything(group: int, pod_uid: str) -> None:
    """SIGKILL to a process group, and to whoever left it but still carries the pod's identifier."""
    mark = f"FC_POD_UID={pod_uid}".encode()
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    while escaped := [pid for pid in _processes() if mark in _environment_of(pid)]:
        for pid in escaped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile, or another user's
        return []

"""Tiny jobs of bash commands, and what a run of one leaves to look at."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ggs.pai.local import LocalOptions, run


def bash_job(*commands: str, instances: int = 2, retries: int = 0, **top: Any) -> str:
    """A job whose role `worker` runs `commands`; `top` adds or replaces keys of the file."""
    role = {
        "instances": instances,
        "dockerImage": "image",
        "resourcePerInstance": {"cpu": 1, "memoryMB": 256, "gpu": 0},
        "commands": list(commands),
        **top.pop("role", {}),
    }
    job = {
        "protocolVersion": 2,
        "name": "tiny",
        "type": "job",
        "jobRetryCount": retries,
        "prerequisites": [{"type": "dockerimage", "name": "image", "uri": "bash-image:1"}],
        "taskRoles": {"worker": role},
        **top,
    }
    return yaml.safe_dump(job, sort_keys=False)


@dataclass(frozen=True)
class Run:
    """How a local run ended."""

    code: int
    folder: Path

    def log(self, attempt: int, role: str, index: int) -> str:
        return (self.folder / f"attempt-{attempt}" / f"{role}-{index}.log").read_text()

    def variables(self, attempt: int, role: str, index: int) -> dict[str, str]:
        """What a task printed with `env`."""
        lines = self.log(attempt, role, index).splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    @property
    def attempts(self) -> int:
        return len(list(self.folder.glob("attempt-*")))


def run_job(text: str, folder: Path, engine: str, **options: Any) -> Run:
    """Run a job and wait for its end."""
    settings: dict[str, Any] = {"engine": engine, "folder": folder, **options}
    return Run(run(text, LocalOptions(**settings)), folder)


def job_with_image(text: str, image: str) -> str:
    """`text` with another image."""
    return text.replace("bash-image:1", image)


@contextmanager
def pai(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The command `pai`, running; ended, with its tasks, if the test fails before its own end."""
    with subprocess.Popen(
        [sys.executable, "-c", "from ggs.pai.cli.main import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield process
        finally:
            process.terminate()  # a kill would leave the tasks to the next run of the tests
            try:
                process.wait(60)
            finally:
                process.kill()


def processes_with(text: str) -> Sequence[int]:
    """Identifiers of this machine's processes with `text` in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in command:
                found.append(int(folder.name))
    return found

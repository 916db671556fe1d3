"""What a person asks of a local run, as typed on the command line, checked and taken apart."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ggs.errors import ConfigurationError
from ggs.text import name_and_value

EngineName = Literal["docker", "process"]

_KILL = re.compile(r"(?P<role>[A-Za-z_]\w*):(?P<index>\d+)@(?P<seconds>\d+(\.\d+)?)")


@dataclass(frozen=True)
class Kill:
    """Kill task ``index`` of ``role``, ``seconds`` after the start of the first attempt."""

    role: str
    index: int
    seconds: float


@dataclass(frozen=True)
class LocalOptions:
    """How to run a job here. Every string is as a person types it."""

    engine: EngineName = "docker"
    """``docker``: a container and an address per task; ``process``: a process group and a loopback
    address."""
    settings: Sequence[str] = ()
    """``NAME=VALUE``: replaces ``parameters.name`` of the job file."""
    gpus: int | None = None
    """GPUs of each task instead of the file's number; 0 runs a GPU job on the CPU."""
    keep: bool = False
    """Leave containers and networks behind for a look, and say how to remove them."""
    kills: Sequence[str] = ()
    """``ROLE:INDEX@SECONDS``: tasks to kill with SIGKILL in the first attempt."""
    storages: Sequence[str] = ()
    """``NAME=FOLDER``: the folder that stands for a storage. Default: one under the run folder."""
    folder: Path | None = None
    """Where logs and storages go. Default: ``runs/local/<job>-<time>``."""
    user: str = "local"
    """The submitter, as in ``PAI_USER_NAME`` and ``user~job``."""
    max_attempts: int = 10
    """Some failures OpenPAI retries for ever; here that ends after so many attempts."""

    linger_seconds: float = 120.0
    """How long a background process may outlive its task's script before the run gives up."""

    def __post_init__(self) -> None:
        if self.engine not in ("docker", "process"):
            raise ConfigurationError(f"--engine {self.engine}: use docker or process")
        if self.gpus is not None and self.gpus < 0:
            raise ConfigurationError(f"--gpus {self.gpus}: give 0 or more")
        if self.max_attempts < 1:
            raise ConfigurationError(f"--max-attempts {self.max_attempts}: give 1 or more")

    def parsed_kills(self) -> list[Kill]:
        """The kills asked for.

        Raises:
            ConfigurationError: one is not ``ROLE:INDEX@SECONDS``.
        """
        kills = []
        for text in self.kills:
            match = _KILL.fullmatch(text)
            if match is None:
                raise ConfigurationError(
                    f"--kill {text}: write ROLE:INDEX@SECONDS, for example worker:1@5"
                )
            kills.append(Kill(match["role"], int(match["index"]), float(match["seconds"])))
        return kills

    def parsed_storages(self) -> dict[str, Path]:
        """The folder of each storage that was given one.

        Raises:
            ConfigurationError: one is not ``NAME=FOLDER``, or the folder does not exist: a typing
                error must not train on an empty folder.
        """
        folders = {}
        for text in self.storages:
            name, path = name_and_value(text, "--storage")
            if not path:
                raise ConfigurationError(f"--storage {text}: write NAME=FOLDER")
            folder = Path(path).expanduser().resolve()
            if not folder.is_dir():
                raise ConfigurationError(f"--storage {text}: no folder {folder}; create it first")
            folders[name] = folder
        return folders

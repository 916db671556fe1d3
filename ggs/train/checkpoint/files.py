"""Checkpoints on disk: the folder, its manifest, and how both are written whole or not at all.

    CHECKPOINT_DIR/step-0000000500/
        manifest.json            what the checkpoint is, and size and SHA-256 of the other files
        replicated.pt            the parameters that all workers share
        rank-00000.pt            one worker's own: residual, optimizer state, batch-norm, RNG, counters
        rank-00001.pt            ...
        metrics.jsonl            the record up to here

A checkpoint is written as ``step-...partial``, every file by rename after fsync, the manifest last, and
then renamed: a folder with a manifest is complete, and one without is none. Nothing here runs code when
it is loaded (``torch.distributed.checkpoint`` is not used because its metadata may).
"""

import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ggs.atomic_files import replacing
from ggs.errors import CheckpointError, ConfigurationError
from ggs.text import one_line, shorten
from ggs.train.checkpoint import state

FORMAT: Final = 2
"""Of a checkpoint: the layout of its folder and files."""
MANIFEST, REPLICATED, METRICS = "manifest.json", "replicated.pt", "metrics.jsonl"
PARTIAL, PROBE, OWNER = ".partial", ".probe-", "owner.json"
MANIFEST_LIMIT = 32 << 20
"""Bytes of a manifest that are read at most."""
_STEP = re.compile(r"step-(\d{10})")


def rank_file(rank: int) -> str:
    """Name of the file with the worker ``rank``'s own state."""
    return f"rank-{rank:05}.pt"


def step_folder(directory: Path, step: int) -> Path:
    """Where the checkpoint after ``step`` steps lies, or would."""
    return directory / f"step-{step:010}"


class FileRecord(BaseModel):
    """Size in bytes and checksum of one file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """What a checkpoint is."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[2] = FORMAT
    """1: a worker's state was JSON beside tensors."""
    ggs_version: str
    step: int = Field(ge=0)
    world_size: int = Field(ge=1, le=100_000)
    steps_per_epoch: int = Field(ge=1)
    density_warmup: int = Field(ge=0)
    created: str
    """ISO 8601, UTC."""
    run_dir: str | None
    settings: dict[str, Any]
    """The run's configuration, as in its config.yaml."""
    model: dict[str, str]
    """Kind, dtype and shape of every parameter and buffer."""
    files: dict[str, FileRecord]


def checkpoints(directory: Path) -> list[Path]:
    """The complete checkpoints in ``directory``, newest first. Raises CheckpointError."""
    try:
        entries = [entry.name for entry in os.scandir(directory)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"cannot read {directory}: {error.strerror}") from None
    names = sorted((name for name in entries if _STEP.fullmatch(name)), reverse=True)
    return [directory / name for name in names if has_manifest(directory / name)]


def has_manifest(folder: Path) -> bool:
    """Whether ``folder`` is a checkpoint. One that a fault hides is: reading it will tell of the fault."""
    try:
        os.stat(folder / MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``manifest`` with a checksum of its own. Raises OSError."""
    content = manifest.model_dump(mode="json")
    document = {"sha256": _digest(content), **content}
    write_bytes(folder / MANIFEST, json.dumps(document, indent=1, allow_nan=False).encode())
    sync_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """The manifest in ``folder``.

    Raises CheckpointError for anything else than what was written, ConfigurationError for what another
    version wrote.
    """
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            text = file.read(MANIFEST_LIMIT + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    if len(text) > MANIFEST_LIMIT:
        raise CheckpointError(f"{path} is larger than {MANIFEST_LIMIT:,} bytes")
    try:
        document = json.loads(text)
        if not isinstance(document, dict) or document.pop("sha256", None) != _digest(document):
            raise CheckpointError(f"{path} is damaged: its checksum is wrong")
        if _is_of_this_format(document):
            return Manifest.model_validate(document)
    except (ValidationError, ValueError, RecursionError) as error:
        reason = one_line(error, 200)
        raise CheckpointError(f"{path} is no manifest that this version reads: {reason}") from None
    writer = shorten(str(document.get("ggs_version")), 40)
    raise ConfigurationError(
        f"{folder} is a checkpoint of format {document['format']}, this version of ggs reads format "
        f"{FORMAT}: finish the run with the ggs that wrote it ({writer}), give another "
        "--checkpoint-dir, or --resume never with --overwrite to start over"
    )


def _is_of_this_format(document: Mapping[str, Any]) -> bool:
    """Also a document whose format is no number: it is none of any version."""
    number = document.get("format")
    return type(number) is not int or number == FORMAT


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_state(path: Path, content: Any) -> FileRecord:
    """Write a state that ``state.to_cpu`` gave, whole or not at all. Raises OSError."""
    with replacing(path, durable=True) as temporary:
        state.write(temporary, content)
    return record(path)


def write_bytes(path: Path, content: bytes) -> FileRecord:
    """Write a file, whole or not at all. Raises OSError."""
    with replacing(path, durable=True) as temporary:
        temporary.write_bytes(content)
    return FileRecord(size=len(content), sha256=hashlib.sha256(content).hexdigest())


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable, where the file system has that."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some mounted storages refuse it for folders
        pass
    finally:
        os.close(handle)


def record(path: Path) -> FileRecord:
    """Size and checksum of a file. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
    return FileRecord(size=size, sha256=digest.hexdigest())


def verified(folder: Path, manifest: Manifest, name: str) -> Path:
    """The path of a checkpoint's file whose content is what was written. Raises CheckpointError."""
    path = folder / name
    expected = manifest.files.get(name)
    if expected is None:
        raise CheckpointError(f"{folder} is damaged: its manifest does not mention {name}")
    try:
        size = path.stat().st_size
        if size != expected.size:
            raise CheckpointError(
                f"{path} is damaged: it has {size:,} bytes instead of {expected.size:,}"
            )
        if record(path) != expected:
            raise CheckpointError(f"{path} is damaged: its checksum is wrong")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    return path


def commit(partial: Path, folder: Path) -> None:
    """Make a finished partial checkpoint the one in ``folder``. Raises OSError."""
    remove(folder)
    os.rename(partial, folder)
    sync_folder(folder.parent)


def remove(folder: Path) -> None:
    """Delete a checkpoint, its manifest first, so that what is left of it is none. Raises OSError."""
    (folder / MANIFEST).unlink(missing_ok=True)
    if folder.exists():
        shutil.rmtree(folder)


def prune(directory: Path, newest: int, keep: int) -> None:
    """Keep the last ``keep`` checkpoints up to step ``newest``. Raises OSError and CheckpointError."""
    last = step_folder(directory, newest)
    for path in [path for path in checkpoints(directory) if path <= last][keep:]:
        remove(path)


def remove_rests(directory: Path) -> None:
    """Delete what killed processes have left half written or half deleted."""
    for path in directory.glob(f"step-*{PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)
    for path in directory.glob("step-*"):
        if _STEP.fullmatch(path.name) and not has_manifest(path):
            shutil.rmtree(path, ignore_errors=True)
    for path in directory.glob(f"{PROBE}*"):
        path.unlink(missing_ok=True)


def take_over(directory: Path, token: str) -> None:
    """Say in the folder that the attempt called ``token`` writes here now. Raises OSError."""
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    owner = {"token": token, "since": since, "host": socket.gethostname()}
    write_bytes(directory / OWNER, json.dumps(owner).encode())


def taken_over(directory: Path, token: str) -> str:
    """Who else has taken the folder over from ``token`` and when, as one line; or ""."""
    try:
        with (directory / OWNER).open("rb") as file:
            owner = json.loads(file.read(10_000))
        if owner["token"] == token:
            return ""
        host, since = str(owner["host"])[:100], str(owner["since"])[:40]
        return f"another job, on {host!r} since {since}, has taken over {directory}"
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""

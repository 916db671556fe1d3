"""Files that are written whole or not at all, and folders that one process has to itself."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, *, mode: int | None = None, durable: bool = False) -> Iterator[Path]:
    """Gives a temporary path to write to, which then takes the place of ``path`` in one move.

    A reader sees the old file or the new one, never half; where the block raises, the old one stays.

    Args:
        mode: permissions from the first byte on; None for what the process's umask leaves.
        durable: whether the content must be on the disk before it takes the place.

    Raises OSError.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        if mode is not None:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        yield temporary
        if durable:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold ``folder``, which must exist, against every other process that asks for it. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

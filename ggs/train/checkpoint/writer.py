"""Writes checkpoints in a thread of its own, so that training waits for a copy in memory only."""

import json
import logging
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ggs.dist.collectives import Collectives
from ggs.errors import CheckpointError, ConfigurationError
from ggs.text import one_line
from ggs.train.checkpoint import files
from ggs.train.checkpoint.agreement import gather_texts
from ggs.train.checkpoint.files import FileRecord, Manifest

_log = logging.getLogger("ggs")
CLOSE_SECONDS = 3.0
"""How long a worker that has failed waits for its checkpoint's thread."""
MAX_FAILURES = 3
"""Checkpoints in a row that may fail before the run stops."""


@dataclass(frozen=True)
class Work:
    """One worker's part of a checkpoint, all of it in the CPU's memory."""

    step: int
    state: dict[str, Any]
    """The worker's own."""
    replicated: dict[str, Tensor]
    """Rank 0's: the shared parameters."""
    manifest: Manifest | None
    """Rank 0's: without the files."""
    metrics: tuple[Path, int] | None
    """Rank 0's: the record and how many bytes of it belong to this checkpoint."""
    is_last: bool = False
    """Whether no step follows; who writes the last one says itself that it failed."""


class Writer:
    """One checkpoint at a time, each worker its own file, rank 0 the manifest when all have theirs.

    Args:
        directory: exists, and is shared by all workers.
        collectives: a gloo group that nobody else uses.
        keep: checkpoints to keep.
        timeout: seconds after which a write that has not ended counts as failed.
        token: the same on all workers, different in every attempt, so that a process of an earlier
            attempt that is still alive somewhere writes nowhere near ours.
        abandoned: checkpoints of another course, to be deleted when there is one of this.
    """

    def __init__(
        self,
        directory: Path,
        collectives: Collectives,
        keep: int,
        timeout: float,
        token: str,
        abandoned: Sequence[Path] = (),
    ) -> None:
        self._directory, self._collectives, self._keep = directory, collectives, keep
        self._timeout, self._token = timeout, token
        self._abandoned = list(abandoned)
        self._taken_over = ""
        self._device = os.stat(directory).st_dev
        self._thread: threading.Thread | None = None
        self.failures = 0
        """Checkpoints in a row that have failed."""
        self.problem = ""
        """What was wrong with the last one, on rank 0 in full; "" where it is written."""

    def start(self, work: Work) -> None:
        """Write ``work`` in the background; no other may be under way (see ``wait``)."""
        assert self._thread is None
        # A daemon: a storage that hangs must not keep a worker from ending.
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the write under way.

        Raises CheckpointError if it does not end in time, ConfigurationError if it must not be.
        """
        if self._thread is None:
            return
        self._thread.join(self._timeout)
        if self._thread.is_alive():
            raise CheckpointError(
                f"a checkpoint in {self._directory} is still not written after {self._timeout:g} s "
                "(checkpoint_timeout): the storage hangs or is too slow"
            )
        self._thread = None
        self._require_ours()

    def close(self) -> None:
        """Wait for the write under way, but not for long: other workers may be gone."""
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def check(self) -> None:
        """Raise CheckpointError after ``MAX_FAILURES`` failures in a row, ConfigurationError where
        another job writes to the same folder."""
        self._require_ours()
        if self.failures >= MAX_FAILURES:
            raise CheckpointError(
                f"{self.failures} checkpoints in a row could not be written: {self.problem}"
            )

    def _require_ours(self) -> None:
        if self._taken_over:
            raise ConfigurationError(
                f"checkpoint_dir: {self._taken_over}; this job stops, so that neither undoes what the "
                "other saves; give each job a --checkpoint-dir of its own"
            )

    def _run(self, work: Work) -> None:
        partial = self._partial(work.step)
        try:
            problem = self._write(work, partial)
        except Exception as error:  # a thread has nobody to raise to
            problem = f"cannot write checkpoint {work.step}: {one_line(error)}"
        if problem:
            shutil.rmtree(partial, ignore_errors=True)
            self.problem = problem
            self.failures += 1
            if self._collectives.rank == 0 and not self._taken_over and not work.is_last:
                _log.warning("%s; training goes on", problem)
        else:
            self.failures, self.problem = 0, ""

    def _partial(self, step: int) -> Path:
        folder = files.step_folder(self._directory, step)
        return folder.with_name(f"{folder.name}.{self._token}{files.PARTIAL}")

    def _write(self, work: Work, partial: Path) -> str:
        """Write and commit. Returns what went wrong, the same on all workers but for the commit."""
        problem, records = "", {}
        try:
            records = self._write_files(work, partial)
        except Exception as error:  # of any kind: the others wait for what this worker has to say
            reason = getattr(error, "strerror", None) or one_line(error)
            problem = f"rank {self._collectives.rank} cannot write to {partial}: {reason}"
        own = {name: entry.model_dump() for name, entry in records.items()}
        rows = gather_texts(self._collectives, json.dumps([problem, own]), torch.device("cpu"))
        answers = [json.loads(row) for row in rows]
        problems = [answer[0] for answer in answers if answer[0]]
        if problems or work.manifest is None:
            return "; ".join(problems)[:1000]
        everything = {name: entry for _, part in answers for name, entry in part.items()}
        missing = [name for name in everything if not (partial / name).exists()]
        if missing:
            return f"{partial / missing[0]} is not to be seen on rank 0"
        return self._commit(work, work.manifest, partial, everything)

    def _commit(
        self, work: Work, manifest: Manifest, partial: Path, entries: dict[str, dict[str, object]]
    ) -> str:
        records = {name: FileRecord.model_validate(entry) for name, entry in entries.items()}
        self._taken_over = files.taken_over(self._directory, self._token)
        if self._taken_over:
            return self._taken_over
        folder = files.step_folder(self._directory, work.step)
        try:
            files.write_manifest(partial, manifest.model_copy(update={"files": records}))
            files.commit(partial, folder)
        except OSError as error:
            return f"rank 0 cannot finish {partial}: {error.strerror or error}"
        try:
            while self._abandoned:
                if self._abandoned[-1] != folder:
                    files.remove(self._abandoned[-1])
                self._abandoned.pop()
            files.prune(self._directory, work.step, self._keep)
        except (OSError, CheckpointError) as error:
            _log.warning("cannot delete an old checkpoint: %s", error)
        return ""

    def _write_files(self, work: Work, partial: Path) -> dict[str, FileRecord]:
        if os.stat(self._directory).st_dev != self._device:
            raise OSError(0, f"{self._directory} is no longer the storage that it was")
        partial.mkdir(exist_ok=True)
        name = files.rank_file(self._collectives.rank)
        records = {name: files.write_state(partial / name, work.state)}
        if work.manifest is not None:
            records[files.REPLICATED] = files.write_state(
                partial / files.REPLICATED, work.replicated
            )
        if work.metrics is not None:
            source, size = work.metrics
            with source.open("rb") as file:
                content = file.read(size)
            records[files.METRICS] = files.write_bytes(partial / files.METRICS, content)
        return records

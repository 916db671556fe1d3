"""What a training run does with checkpoints: go on from one, write new ones, say when it is done."""

import logging
import os
import secrets
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from ggs._version import __version__
from ggs.dist.process_group import Group, connect
from ggs.errors import CheckpointError, ConfigurationError
from ggs.train.checkpoint import files, find
from ggs.train.checkpoint.agreement import first_text, gather_texts
from ggs.train.checkpoint.due import Due
from ggs.train.checkpoint.files import Manifest
from ggs.train.checkpoint.load import Loaded, choose
from ggs.train.checkpoint.restore import describe, own_state, reach, replicated, restore
from ggs.train.checkpoint.settings import values
from ggs.train.checkpoint.state import Buffers, to_cpu
from ggs.train.checkpoint.writer import Work, Writer
from ggs.train.duration import Interval
from ggs.train.loop import Trainer

DEFAULT_INTERVAL = Interval(10, "minutes")
_log = logging.getLogger("ggs")
PROBE_SECONDS = 30.0
"""How long a file that rank 0 writes may take to be seen by the others: network storages cache folders."""


def resume(trainer: Trainer) -> Loaded | None:
    """Put ``trainer`` where the newest usable checkpoint is; a collective. None: it starts at step 0.

    Raises ConfigurationError for checkpoints of another run, CheckpointError where none is usable.
    """
    config, collectives, device = trainer.config, trainer.collectives, trainer.device
    paths = find.candidates(config) if collectives.rank == 0 else ()
    sharing = trainer.optimizer.state_dict()["ggs"].get("residual_weight", 1)
    loaded = choose(paths, collectives, device, sharing)
    if loaded is None:
        if collectives.rank == 0 and config.checkpoint_dir:
            _log.info("no checkpoint in %s: starting at step 0", config.checkpoint_dir)
        return None
    changes = restore(trainer, loaded)
    reach(trainer)
    if collectives.rank == 0:
        _log.info("resuming after step %s from %s", f"{trainer.state.step:,}", loaded.folder)
        if changes:
            _log.warning("%s", changes)
    return loaded


class Checkpointer:
    """Writes the checkpoints of one run. Construct it on every worker: a collective.

    Args:
        directory: where to; created if it is not there.
        trainer: at the step that the run starts with.
        group: a gloo group of the same workers that nobody else uses; None without a process group.
        resumed: what the run goes on from; None where it starts at step 0.

    Raises CheckpointError where a worker cannot write to ``directory``, ConfigurationError where the
    workers do not share it.
    """

    def __init__(
        self,
        directory: Path,
        trainer: Trainer,
        group: Group | None,
        resumed: Loaded | None = None,
    ) -> None:
        self._directory, self._trainer = directory, trainer
        self._config, self._rank = trainer.config, trainer.collectives.rank
        token = first_text(trainer.collectives, secrets.token_hex(4), trainer.device)
        self._require_shared(token)
        self._writer = Writer(
            directory,
            connect(group),
            self._config.keep_checkpoints,
            self._config.checkpoint_timeout,
            token,
            self._abandoned(resumed) if self._rank == 0 else (),
        )
        self._due = Due(
            self._config.checkpoint_every or DEFAULT_INTERVAL,
            trainer.plan.steps_per_epoch,
            trainer.state.step,
            trainer.collectives,
            trainer.device,
        )
        self._last = -1
        self._buffers: Buffers = {}
        self.seconds = 0.0
        """How long training has waited for checkpoints."""

    def after_step(self) -> None:
        """Call after every step: starts a checkpoint where one is due. Raises CheckpointError."""
        self._writer.check()
        if self._due(self._trainer.state.step):
            self.save()

    def save(self) -> None:
        """Copy the state and start writing it; a collective. Waits for the checkpoint before it."""
        started = time.perf_counter()
        self._writer.wait()
        trainer = self._trainer
        self._last = trainer.state.step
        work = Work(
            trainer.state.step,
            to_cpu(own_state(trainer), self._buffers, ("own",)),
            to_cpu(replicated(trainer.optimizer) if self._rank == 0 else {}, self._buffers),
            self._manifest() if self._rank == 0 else None,
            trainer.folder.metrics_so_far() if trainer.folder else None,
            is_last=trainer.state.step >= trainer.plan.steps,
        )
        self._writer.start(work)
        self.seconds += time.perf_counter() - started

    def finish(self) -> str:
        """Have the last step in a checkpoint, and wait until it is written; a collective.

        Returns what keeps it from being written, the same on all workers; "" where it is. Raises
        CheckpointError where the storage hangs.
        """
        self._writer.wait()
        problem = self._agreed_problem()
        if problem or self._last != self._trainer.state.step:
            self.save()
            self._writer.wait()
            problem = self._agreed_problem()
        return problem

    def _agreed_problem(self) -> str:
        return first_text(self._trainer.collectives, self._writer.problem, self._trainer.device)

    def close(self) -> None:
        """After a failure: give the checkpoint under way a moment, so that its thread ends before us."""
        self._writer.close()

    def mark_done(self) -> None:
        """Say that the run has its results; rank 0 calls it."""
        try:
            find.mark_done(self._directory, self._trainer.state.step)
        except OSError as error:
            _log.warning("cannot write to %s: %s", self._directory, error.strerror)

    def _abandoned(self, resumed: Loaded | None) -> list[Path]:
        """The checkpoints in the folder that are not of the course that this run is on."""
        checkpoints = files.checkpoints(self._directory)
        if resumed is None or resumed.folder.parent.resolve() != self._directory.resolve():
            return checkpoints
        return [path for path in checkpoints if path.name > resumed.folder.name]

    def _manifest(self) -> Manifest:
        trainer = self._trainer
        return Manifest(
            ggs_version=__version__,
            step=trainer.state.step,
            world_size=trainer.collectives.size,
            steps_per_epoch=trainer.plan.steps_per_epoch,
            density_warmup=trainer.plan.density_warmup,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            run_dir=str(trainer.folder.path) if trainer.folder else None,
            settings=values(self._config),
            model=describe(trainer.model),
            files={},
        )

    def _require_shared(self, token: str) -> None:
        """Every worker can write to the folder, and sees what rank 0 writes there."""
        directory, collectives = self._directory, self._trainer.collectives
        problem = ""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            probe = directory / f"{files.PROBE}{token}-{self._rank}"
            probe.touch()
            probe.unlink(missing_ok=True)
            if self._rank == 0:
                files.remove_rests(directory)
                files.take_over(directory, token)
                (directory / f"{files.PROBE}{token}").touch()
        except OSError as error:
            problem = f"cannot write to {directory}: {error.strerror}"
        if text := self._first(gather_texts(collectives, problem, self._trainer.device)):
            raise CheckpointError(f"checkpoint_dir: {text}")
        deadline = time.monotonic() + PROBE_SECONDS
        while not (directory / f"{files.PROBE}{token}").exists():
            os.scandir(directory).close()  # some network file systems look again only when asked so
            if time.monotonic() > deadline:
                problem = (
                    f"{directory} is not the folder that rank 0 sees under this name; give one on a "
                    "storage that all tasks share"
                )
                break
            time.sleep(0.2)
        problems = gather_texts(collectives, problem, self._trainer.device)
        if self._rank == 0:
            (directory / f"{files.PROBE}{token}").unlink(missing_ok=True)
        if text := self._first(problems):
            raise ConfigurationError(f"checkpoint_dir: {text}")

    def _first(self, problems: Sequence[str]) -> str:
        """This worker's problem, else the first one with its rank, or nothing: whoever tells of an error
        says which worker raised it."""
        if problems[self._rank]:
            return problems[self._rank]
        return next((f"rank {rank}: {text}" for rank, text in enumerate(problems) if text), "")

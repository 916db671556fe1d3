"""TensorBoard events of a run, in ``tensorboard/`` below its folder; rank 0 writes them.

The values of one line are one event: one per value took ten times as long, 3 % of LeNet-5's training.
"""

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from ggs.train.records import EvaluationRow, TrainingRow

FOLDER = "tensorboard"
FLUSH_SECONDS = 15
"""Seconds until an event is in the file, where a storage may be slow."""

_TRAIN_TAGS = {
    "loss": "loss/training",
    "lr": "training/learning rate",
    "samples_per_second": "training/images per second",
    "skipped_steps": "training/skipped steps",
    "density": "exchange/density",
    "bytes_sent": "exchange/bytes sent per step",
    "bytes_sent_total": "exchange/bytes sent",
    "residual_norm": "exchange/residual norm",
}
_EVALUATION_TAGS = {"top1": "top-1/test", "loss": "loss/test"}

_log = logging.getLogger("ggs")


def is_installed() -> bool:
    """Whether the package ``tensorboard`` is there."""
    return find_spec("tensorboard") is not None


class Events:
    """Writes a run's events; a failing storage ends the events, not the training.

    Args:
        run_dir: the run's folder.
        done: steps that the run has done already. Later events of a killed run are taken back.
    """

    def __init__(self, run_dir: Path, done: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from torch.utils.tensorboard import FileWriter

        folder = run_dir / FOLDER
        self._writer: FileWriter | None = None
        try:
            if done == 0:
                for old in folder.glob("events.out.tfevents.*"):
                    old.unlink()
            self._writer = FileWriter(folder, flush_secs=FLUSH_SECONDS)
            if done:
                resumed = SessionLog(status=SessionLog.START)
                self._writer.add_event(Event(session_log=resumed), done + 1)
        except OSError as error:
            self._give_up(error)

    def train(self, row: TrainingRow) -> None:
        """The events of a "train" line of ``metrics.jsonl``."""
        values = {tag: getattr(row, name) for name, tag in _TRAIN_TAGS.items()}
        phases = row.step_seconds or {}
        shares = {name: seconds / sum(phases.values()) for name, seconds in phases.items()}
        values.update({f"share of a step/{name}": share for name, share in shares.items()})
        self._add(values, row.step)

    def evaluation(self, row: EvaluationRow) -> None:
        """The events of an "evaluation" line of ``metrics.jsonl``."""
        values = {tag: getattr(row, name) for name, tag in _EVALUATION_TAGS.items()}
        self._add(values, row.step)

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as error:
                self._give_up(error)
            self._writer = None

    def _add(self, values: Mapping[str, float | None], step: int) -> None:
        if self._writer is None:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [
            Summary.Value(tag=tag, simple_value=value)
            for tag, value in values.items()
            if value is not None
        ]
        try:
            self._writer.add_summary(Summary(value=scalars), step)
        except OSError as error:  # of the writer's thread, some events ago
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._writer = None
        _log.warning("no more TensorBoard events: %s", error.strerror or error)

"""Which checkpoints a run may go on from, by its settings alone; before any worker starts, too."""

import json
from pathlib import Path

from ggs.errors import CheckpointError, ConfigurationError
from ggs.train.checkpoint import files
from ggs.train.checkpoint.settings import difference, require_same_run
from ggs.train.config import TrainConfig

DONE = "done.json"
"""Marks a checkpoint folder whose run has ended and has its results."""
MOST_CANDIDATES = 50


def candidates(config: TrainConfig) -> tuple[Path, ...]:
    """Checkpoints to try, newest first; none: start at step 0.

    Raises ConfigurationError and CheckpointError.
    """
    directory = config.checkpoint_dir
    own = files.checkpoints(directory) if directory is not None else []
    if config.resume == "never":
        if own and not config.overwrite:
            raise ConfigurationError(
                f"resume: {directory} holds checkpoints, which 'never' would lose; give another "
                "--checkpoint-dir, --overwrite to delete them, or --resume auto"
            )
        return ()
    if own and config.overwrite and (_is_done(own[0]) or _is_another_run(own, config)):
        own = []
    else:
        _require_same_run(own, config)
    if not own and config.resume != "auto":
        return _named(Path(config.resume), config)
    return tuple(own[:MOST_CANDIDATES])


def mark_done(directory: Path, step: int) -> None:
    """Say that the run whose last checkpoint is ``step``'s has its results. Raises OSError."""
    manifest = files.record(files.step_folder(directory, step) / files.MANIFEST)
    files.write_bytes(directory / DONE, json.dumps({"manifest": manifest.sha256}).encode())


def _is_done(newest: Path) -> bool:
    """Whether the mark is of this checkpoint, and not of an earlier run that ended at the same step."""
    try:
        with (newest.parent / DONE).open("rb") as file:
            done = json.loads(file.read(1000))
        return bool(done["manifest"] == files.record(newest / files.MANIFEST).sha256)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False


def _settings(paths: list[Path]) -> tuple[Path, dict[str, object]] | None:
    """The newest readable manifest's settings; damaged ones are reported when they are tried."""
    for path in paths:
        try:
            return path, files.read_manifest(path).settings
        except CheckpointError:
            continue
    return None


def _is_another_run(paths: list[Path], config: TrainConfig) -> bool:
    stored = _settings(paths)
    return stored is not None and difference(stored[1], config) != ""


def _require_same_run(paths: list[Path], config: TrainConfig) -> None:
    if stored := _settings(paths):
        require_same_run(stored[1], config, str(stored[0]))


def _named(path: Path, config: TrainConfig) -> tuple[Path, ...]:
    checkpoints = [path] if files.has_manifest(path) else files.checkpoints(path)
    if not checkpoints:
        raise ConfigurationError(
            f"resume: {path} is no checkpoint and holds none; give auto, never or a folder like "
            "CHECKPOINT_DIR/step-0000000500"
        )
    _require_same_run(checkpoints, config)
    return tuple(checkpoints[:MOST_CANDIDATES])

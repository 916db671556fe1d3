"""The folder of a run: ``config.yaml``, ``metrics.jsonl``, ``summary.json``, ``model.safetensors``.

A finished run (one with a summary) is never replaced by another unless ``overwrite`` says so; an
unfinished one with the same settings, as a restarted job finds it, is started over; without ``run_dir``
every run gets a new folder.
"""

import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from ggs.atomic_files import replacing
from ggs.errors import CheckpointError, ConfigurationError
from ggs.plain_yaml import dump_settings
from ggs.text import one_line
from ggs.train.arguments import load_yaml
from ggs.train.config import TrainConfig
from ggs.train.records import EvaluationRow, Record, Summary, TrainingRow

CONFIG, METRICS, SUMMARY, WEIGHTS = (
    "config.yaml",
    "metrics.jsonl",
    "summary.json",
    "model.safetensors",
)


class RunFolder:
    """The folder of one run, open for writing. Only rank 0 has one."""

    def __init__(
        self, config: TrainConfig, metrics: bytes | None = None, last: str | None = None
    ) -> None:
        """Create the folder and write ``config.yaml``.

        Args:
            config: the run's settings.
            metrics: the content of ``metrics.jsonl`` to go on from, where the run is resumed.
            last: the folder that the resumed run had, taken again if ``run_dir`` is not set and the run
                has no results yet.

        Raises ConfigurationError.
        """
        if config.run_dir is None:
            again = metrics is not None and last is not None and _is_unfinished(Path(last))
            self.path = Path(last) if again and last is not None else _new_folder(config)
        else:
            check_free(config.run_dir, config, resumed=metrics is not None)
            self.path = config.run_dir
        self.restarted = metrics is None and (self.path / CONFIG).exists()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / SUMMARY).unlink(missing_ok=True)
            _write(self.path / CONFIG, dump(config))
            self._config = config
            self._device = os.stat(self.path).st_dev
            self._metrics = (self.path / METRICS).open("wb")
            self._metrics.write(metrics or b"")
            self._metrics.flush()
        except OSError as error:
            raise ConfigurationError(
                f"run_dir: cannot write to {self.path}: {error.strerror}"
            ) from None

    def log(self, row: TrainingRow | EvaluationRow) -> None:
        """Append one line to ``metrics.jsonl``; NaN and infinity, which JSON lacks, become null."""
        with self._writing():
            self._stay()
            self._metrics.write((_json(row) + "\n").encode())
            self._metrics.flush()

    def metrics_so_far(self) -> tuple[Path, int]:
        """The path of ``metrics.jsonl`` and its size in bytes."""
        with self._writing():
            self._stay()
        return self.path / METRICS, self._metrics.tell()

    def close(self) -> None:
        """Close ``metrics.jsonl``; harmless when it is closed already, or its disk is full."""
        with suppress(OSError):  # every line has been flushed, or its failure raised
            self._metrics.close()

    def finish(self, summary: Summary) -> None:
        """Write ``summary.json``, which marks the run as finished."""
        with self._writing():
            self._stay()
            self.close()
            _write(self.path / SUMMARY, _json(summary, indent=2) + "\n")

    def save_weights(self, model: nn.Module) -> None:
        """Write ``model.safetensors``; ``model.load_state_dict(safetensors.torch.load_file(path))``."""
        # safetensors refuses tied weights, which are one tensor under two names: write copies. Views of
        # one buffer, as GGS makes of the weights, it would take.
        state = {
            name: tensor.detach().cpu().contiguous().clone()
            for name, tensor in model.state_dict().items()
        }
        with self._writing():
            self._stay()
            with replacing(self.path / WEIGHTS) as temporary:
                save_file(state, str(temporary))  # which makes it readable to its owner alone
                with suppress(OSError):  # some storages know no modes
                    temporary.chmod(stat.S_IMODE((self.path / METRICS).stat().st_mode))

    def _stay(self) -> None:
        """Put the folder there again, with the record so far, if somebody has deleted or moved it.

        Raises OSError, also where its storage is gone: what lies below is lost with the container.
        """
        if (self.path / METRICS).exists():
            return
        there = next(path for path in (self.path, *self.path.absolute().parents) if path.exists())
        if os.stat(there).st_dev != self._device:
            raise OSError(0, "it is no longer on the storage that it was on")
        self.path.mkdir(parents=True, exist_ok=True)
        _write(self.path / CONFIG, dump(self._config))
        record = Path(f"/proc/self/fd/{self._metrics.fileno()}").read_bytes()  # no name is left
        self._metrics.close()
        self._metrics = (self.path / METRICS).open("wb")
        self._metrics.write(record)
        self._metrics.flush()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise CheckpointError, which a retry may cure, where the folder cannot be written to."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or one_line(error, 200)
            raise CheckpointError(
                f"cannot write to the run's folder {self.path}: {reason}"
            ) from None


def check_free(path: Path, config: TrainConfig, resumed: bool = False) -> None:
    """Raise ConfigurationError if a run that must not be replaced lies in ``path``.

    Args:
        resumed: whether the run goes on from a checkpoint, and its own folder is to be there.
    """
    if path.exists() and not path.is_dir():
        raise ConfigurationError(f"run_dir: {path} is a file; give a folder")
    if config.overwrite or not (path / CONFIG).exists():
        return
    finished = (path / SUMMARY).exists()
    if finished and not resumed:
        raise ConfigurationError(
            f"run_dir: {path} holds a finished run; give another --run-dir, or --overwrite to replace it"
        )
    there, here = load_yaml(path / CONFIG), _values(config)
    for name in TrainConfig.fixed(resumed=resumed):
        if there.get(name) != here[name]:
            kind = "a finished" if finished else "an unfinished"
            raise ConfigurationError(
                f"run_dir: {path} holds {kind} run with {name} {there.get(name)}, here it is "
                f"{here[name]}; give another --run-dir, or --overwrite to replace it"
            )


def _is_unfinished(path: Path) -> bool:
    return (path / CONFIG).exists() and not (path / SUMMARY).exists()


def dump(config: TrainConfig) -> str:
    """The complete configuration as YAML that ``--config`` reads back."""
    return dump_settings(_values(config))


def _values(config: TrainConfig) -> dict[str, Any]:
    # Whoever trains from this file again has not yet agreed to lose this run.
    return {**config.model_dump(mode="json"), "overwrite": False}


def _new_folder(config: TrainConfig) -> Path:
    model = config.model.replace(":", "-")
    base = Path("runs") / f"{model}-{config.data}-{config.method}"
    number = 1
    while True:
        path = base if number == 1 else base.with_name(f"{base.name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError as error:
            if not os.path.lexists(path):  # the folder above it is no folder
                raise ConfigurationError(
                    f"run_dir: cannot create {path}: {error.strerror}"
                ) from None
            number += 1
        except OSError as error:
            raise ConfigurationError(f"run_dir: cannot create {path}: {error.strerror}") from None
        else:
            return path


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _json(record: Record, indent: int | None = None) -> str:
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in asdict(record).items()
    }
    return json.dumps(finite, indent=indent, allow_nan=False)

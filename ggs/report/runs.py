"""Runs as a report sees them: the folders that ``ggs train`` leaves, finished or not."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ggs.errors import ConfigurationError, DataError
from ggs.train.arguments import load_yaml

POINTS = 800
"""Points that a curve has at most; longer ones are drawn through means of neighbours."""

Row = dict[str, Any]

_NEEDED = {
    "train": {"step", "seconds", "loss", "bytes_sent", "bytes_sent_total", "step_seconds"},
    "evaluation": {"step", "seconds", "top1", "bytes_sent_total"},
}


@dataclass(frozen=True)
class Run:
    """One run's settings, record and summary."""

    path: Path
    config: Mapping[str, Any]
    training: Sequence[Row]
    """The "train" lines of ``metrics.jsonl``."""
    evaluations: Sequence[Row]
    """Its "evaluation" lines."""
    summary: Mapping[str, Any] | None
    """None while the run has not finished."""

    @cached_property
    def steps(self) -> int:
        """Steps done."""
        return max((row["step"] for row in (*self.training, *self.evaluations)), default=0)

    @cached_property
    def phases(self) -> dict[str, float]:
        """Mean seconds of a step by phase, over the second half of the record."""
        rows = self.training[len(self.training) // 2 :]
        names = rows[-1]["step_seconds"] if rows else {}
        return {name: sum(row["step_seconds"][name] for row in rows) / len(rows) for name in names}


def read_run(path: Path) -> Run:
    """Read a run's folder.

    Raises ConfigurationError where there is no run, DataError where one is damaged.
    """
    config, metrics, summary = (
        path / name for name in ("config.yaml", "metrics.jsonl", "summary.json")
    )
    if not (config.is_file() and metrics.is_file()):
        raise ConfigurationError(
            f"{path} holds no run: give a folder with config.yaml and metrics.jsonl, as ggs train leaves it"
        )
    rows = list(_lines(metrics))
    try:
        return Run(
            path,
            load_yaml(config),
            [row for row in rows if row["kind"] == "train"],
            [row for row in rows if row["kind"] == "evaluation"],
            json.loads(summary.read_text()) if summary.is_file() else None,
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"the run in {path} is damaged: {error!r}") from None


def _lines(path: Path) -> Iterable[Row]:
    """The record's rows; a last line without its end belongs to a run that is being written."""
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if not line.endswith("\n"):
            break
        try:
            row = json.loads(line)
            complete = _NEEDED[row["kind"]] <= row.keys()
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            complete = False
        if not complete:
            raise DataError(f"line {number} of {path} is damaged, or of another version of ggs")
        yield row


def names(runs: Sequence[Run]) -> list[str]:
    """The shortest ends of the runs' paths that tell them apart."""
    parts = [run.path.absolute().parts for run in runs]
    for length in range(1, max(map(len, parts))):
        short = ["/".join(part[-length:]) for part in parts]
        if len(set(short)) == len(short):
            return short
    return [str(run.path) for run in runs]


def thinned(rows: Sequence[Row], name: str) -> list[Row]:
    """At most ``POINTS`` rows; the value called ``name`` is its mean since the row before."""
    found = [row for row in rows if row.get(name) is not None]
    size = -(-len(found) // POINTS) or 1
    groups = [found[start : start + size] for start in range(0, len(found), size)]
    return [{**group[-1], name: sum(row[name] for row in group) / len(group)} for group in groups]


def differences(runs: Sequence[Run], ignored: frozenset[str]) -> tuple[list[str], list[str]]:
    """Names of the settings in which runs differ, and of those in which they do not."""
    known = list(dict.fromkeys(name for run in runs for name in run.config))
    differ = [
        name
        for name in known
        if name not in ignored
        and any(run.config.get(name) != runs[0].config.get(name) for run in runs)
    ]
    return differ, [name for name in known if name not in differ and name not in ignored]

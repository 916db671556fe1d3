"""Runs as a report sees them: the folders that ``ggs train`` leaves, finished or not."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ggs.errors import ConfigurationError, DataError
from ggs.report.damage import check_settings, read_row, read_summary
from ggs.train.arguments import load_yaml
from ggs.train.records import Summary

POINTS = 800
"""Points that a curve has at most; longer ones are drawn through means of neighbours."""
PHASES = ("loading", "computing", "selecting", "averaging", "sending", "waiting")
"""The order in which known phases of a step are shown. Others come after them, in the record's order."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run's settings, record and summary."""

    path: Path
    config: Mapping[str, Any]
    training: Sequence[Row]
    """The "train" lines of ``metrics.jsonl``: every field of :class:`ggs.train.records.TrainingRow`."""
    evaluations: Sequence[Row]
    """Its "evaluation" lines, as :class:`ggs.train.records.EvaluationRow`."""
    summary: Summary | None
    """None while the run has not finished."""

    @property
    def dense(self) -> bool:
        """Whether every step sent everything."""
        return bool(self.config.get("method") == "dense")

    @cached_property
    def steps(self) -> int:
        """Steps done."""
        if self.summary is not None and self.summary.steps is not None:
            return self.summary.steps
        return max((row["step"] for row in (*self.training, *self.evaluations)), default=0)

    @property
    def top1(self) -> float | None:
        """Percent at the end, or so far; NaN if it was not finite, None if never measured."""
        if self.summary is not None and self.summary.top1 is not None:
            return self.summary.top1
        top1: float | None = last(self.evaluations, "top1")
        return top1

    @cached_property
    def phases(self) -> dict[str, float]:
        """Mean seconds of a step by phase, over the second half of the record.

        A phase that a step did not come to took it no time. Empty where nothing was measured.
        """
        measured = [row["step_seconds"] for row in self.training if row["step_seconds"]]
        second_half = measured[len(measured) // 2 :]
        names = in_order(name for seconds in second_half for name in seconds)
        return {
            name: sum(seconds.get(name, 0.0) for seconds in second_half) / len(second_half)
            for name in names
        }

    def phase(self, name: str) -> str | None:
        """A phase's mean time and its share of the step, in words; None where it was not measured."""
        seconds, whole = self.phases.get(name), sum(self.phases.values())
        if seconds is None:
            return None
        milliseconds = 1000 * seconds
        text = f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"
        return f"{text}, {seconds / whole:.0%}" if whole else text


def in_order(names: Iterator[str]) -> list[str]:
    """Phases once each: the known ones first, in the order of ``PHASES``."""
    unique = list(dict.fromkeys(names))
    known = [name for name in PHASES if name in unique]
    return known + [name for name in unique if name not in known]


def letter(order: int) -> str:
    """What run number ``order`` (from 0) is called: A, B, ..., Z, A1, B1, ..."""
    return LETTERS[order % len(LETTERS)] + (
        str(order // len(LETTERS)) if order >= len(LETTERS) else ""
    )


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read runs' folders, each of which is given once.

    Raises ConfigurationError for a folder without a run, and for one given twice, be it under another
    name; DataError for a damaged run.
    """
    runs: list[Run] = []
    for path in paths:
        run = read_run(path)
        same = next((other for other in runs if os.path.samefile(other.path, path)), None)
        if same is not None:
            other = "" if same.path == path else f" (as {same.path})"
            raise ConfigurationError(
                f"the run in {path} is given twice{other}; give every run once"
            )
        runs.append(run)
    return runs


def read_run(path: Path) -> Run:
    """Read a run's folder.

    Raises ConfigurationError where there is no run, DataError where one is damaged.
    """
    config, metrics, summary = (
        path / name for name in ("config.yaml", "metrics.jsonl", "summary.json")
    )
    try:
        if not (config.is_file() and metrics.is_file()):
            raise ConfigurationError(
                f"{path} holds no run: give a folder with config.yaml and metrics.jsonl, as ggs train "
                "leaves it"
            )
        settings = _settings(config)
        rows = list(_rows(metrics))
        return Run(
            path,
            settings,
            [row for row in rows if row["kind"] == "train"],
            [row for row in rows if row["kind"] == "evaluation"],
            read_summary(summary.read_bytes(), str(summary)) if summary.is_file() else None,
        )
    except OSError as error:
        raise ConfigurationError(f"the run in {path} cannot be read: {error.strerror}") from None


def _settings(path: Path) -> dict[str, Any]:
    try:
        values = load_yaml(path)
    except ConfigurationError as error:
        raise DataError(f"{error}; repair the file, or leave this run out of the report") from None
    check_settings(values, str(path))
    return values


def _rows(path: Path) -> Iterator[Row]:
    """The record's rows; a last line without its end belongs to a run that is being written."""
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        yield vars(read_row(line, f"line {number} of {path}"))


def names(runs: Sequence[Run]) -> list[str]:
    """The shortest ends of the runs' paths that tell them apart."""
    parts = [run.path.absolute().parts for run in runs]
    for length in range(1, max(map(len, parts))):
        short = ["/".join(part[-length:]) for part in parts]
        if len(set(short)) == len(short):
            return short
    return [str(run.path) for run in runs]


def last(rows: Sequence[Row], name: str) -> Any:
    """The value called ``name`` of the latest row that has one; None where none has."""
    measured = [row for row in rows if row.get(name) is not None]
    return max(measured, key=lambda row: row["step"])[name] if measured else None


def thinned(rows: Sequence[Row], name: str) -> list[Row]:
    """At most ``POINTS`` rows; the value called ``name`` is its mean since the row before.

    A mean over values of which one is not finite is NaN, so that a long record shows it too.
    """
    measured = [row for row in rows if row.get(name) is not None]
    size = -(-len(measured) // POINTS) or 1
    groups = [measured[start : start + size] for start in range(0, len(measured), size)]
    return [
        {**group[-1], name: math.fsum(row[name] for row in group) / len(group)} for group in groups
    ]

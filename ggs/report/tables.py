"""The report's tables: a row for each figure, a column for each run, for phones are narrow."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ggs.report import comparison
from ggs.report.runs import Run, in_order, last, letter
from ggs.text import readable_bytes
from ggs.train.console import duration
from ggs.train.records import Summary

_ENVIRONMENT: dict[str, Callable[[Summary], Any]] = {
    "device": lambda summary: summary.device,
    "workers": lambda summary: summary.world_size,
    "GGS": lambda summary: summary.ggs_version,
    "PyTorch": lambda summary: summary.torch_version,
    "Python": lambda summary: summary.python_version,
}
_NOTHING = "–"

_Figures = dict[str, Callable[[Run], str | None]]


@dataclass(frozen=True)
class Table:
    """Rows of a name and one text per run."""

    rows: list[tuple[str, list[str]]]


def results(runs: Sequence[Run]) -> Table:
    """What each run came to."""
    order = comparison.reference(runs)
    base = runs[order]
    figures: _Figures = {
        "state": lambda run: "finished" if run.summary else f"unfinished, step {run.steps:,}",
        "method": lambda run: _joined(", ", run.config["method"], run.config.get("optimizer")),
        "model": lambda run: _joined(" on ", run.config.get("model"), run.config.get("data")),
        "top-1": lambda run: _number(run.top1, "{:.2f} %"),
        f"against {letter(order)}": lambda run: (
            comparison.difference(run, base) if run is not base else None
        ),
        "best top-1": lambda run: _number(_best(run), "{:.2f} %"),
        "test loss": lambda run: _number(last(run.evaluations, "loss"), "{:.4f}"),
        "training loss": lambda run: _number(last(run.training, "loss"), "{:.4f}"),
        "steps": lambda run: f"{run.steps:,}",
        "time": lambda run: _text(duration, _whole(run, "seconds")),
        "images/s": lambda run: _number(_whole(run, "samples_per_second"), "{:,.0f}"),
        "density": _of_summary(lambda summary: _number(summary.density, "{:.4%}")),
        "sent per step": _of_summary(
            lambda summary: _text(readable_bytes, summary.bytes_sent_per_step)
        ),
        "less than dense": _of_summary(
            lambda summary: _number(summary.compression_ratio, "{:,.1f} times")
        ),
        "sent in all": lambda run: _text(readable_bytes, last(run.training, "bytes_sent_total")),
        "less than dense, in all": _of_summary(
            lambda summary: _number(summary.compression_ratio_total, "{:,.1f} times")
        ),
        "skipped steps": lambda run: _number(last(run.training, "skipped_steps"), "{:,}"),
        **{name: _phase(name) for name in in_order(name for run in runs for name in run.phases)},
    }
    return _filled(figures, runs)


@dataclass(frozen=True)
class Settings:
    """The settings, sorted by :func:`ggs.report.comparison.settings`."""

    differ: Table
    sparse: Table
    same: Table
    """With the text of the first run only."""


def settings(runs: Sequence[Run]) -> Settings:
    """The settings in which the runs differ, those of the sparse runs among them, and the others."""
    names = comparison.settings(runs)
    return Settings(_settings(names.differ, runs), _settings(names.sparse, runs),
                    _settings(names.same, runs[:1]))  # fmt: skip


def environment(runs: Sequence[Run]) -> Table:
    """What each finished run ran on."""
    return _filled({title: _as_written(value) for title, value in _ENVIRONMENT.items()}, runs)


def _filled(figures: _Figures, runs: Sequence[Run]) -> Table:
    """The rows in which any run has something to say."""
    rows = [(name, [figure(run) for run in runs]) for name, figure in figures.items()]
    return Table(
        [(name, [text or _NOTHING for text in texts]) for name, texts in rows if any(texts)]
    )


def _settings(names: Sequence[str], runs: Sequence[Run]) -> Table:
    return Table([(name, [_setting(name, run) for run in runs]) for name in names])


def _setting(name: str, run: Run) -> str:
    """A setting's value; of one that has no effect on the run, or that its version did not know, none."""
    if name not in run.config or not comparison.applies(name, run):
        return _NOTHING
    value = run.config[name]
    if value is None or value == {}:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_written(value: Callable[[Summary], Any]) -> Callable[[Run], str | None]:
    return _of_summary(lambda summary: _text(str, value(summary)))


def _phase(name: str) -> Callable[[Run], str | None]:
    return lambda run: run.phase(name)


def _best(run: Run) -> float | None:
    """The best finite top-1; NaN where all were not finite."""
    values: list[float] = [row["top1"] for row in run.evaluations]
    finite = [value for value in values if math.isfinite(value)]
    return max(finite) if finite else values[-1] if values else None


def _whole(run: Run, name: str) -> Any:
    """A figure of the whole run, as its own end printed it; of an unfinished one the last recorded."""
    if run.summary is not None:
        return getattr(run.summary, name)
    return last([*run.training, *run.evaluations], name)


def _of_summary(text: Callable[[Summary], str | None]) -> Callable[[Run], str | None]:
    return lambda run: None if run.summary is None else text(run.summary)


def _text(form: Callable[[Any], str], value: Any) -> str | None:
    if value is None:
        return None
    return "not finite" if isinstance(value, float) and math.isnan(value) else form(value)


def _number(value: float | None, form: str) -> str | None:
    return _text(form.format, value)


def _joined(between: str, *texts: str | None) -> str | None:
    return between.join(text for text in texts if text is not None)

"""The report's tables: a row for each figure, a column for each run, for phones are narrow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ggs.report.charts import PHASES
from ggs.report.runs import Run, differences
from ggs.train.progress import duration, size

_OF_NO_INTEREST = frozenset({"run_dir", "overwrite", "dry_run", "checkpoint_dir"})
_ENVIRONMENT = {
    "device": "device",
    "world_size": "workers",
    "ggs_version": "GGS",
    "torch_version": "PyTorch",
    "python_version": "Python",
}


@dataclass(frozen=True)
class Table:
    """Rows of a name and one text per run."""

    rows: list[tuple[str, list[str]]]


def results(runs: Sequence[Run]) -> Table:
    """What each run came to."""
    base = _top1(runs[0])
    figures: dict[str, Callable[[Run], str | None]] = {
        "state": lambda run: "finished" if run.summary else f"unfinished, step {run.steps:,}",
        "method": lambda run: f"{run.config['method']}, {run.config['optimizer']}",
        "model": lambda run: f"{run.config['model']} on {run.config['data']}",
        "top-1": lambda run: _number(_top1(run), "{:.2f} %"),
        "against A": lambda run: _difference(_top1(run), base) if run is not runs[0] else None,
        "best top-1": lambda run: _number(
            max((row["top1"] for row in run.evaluations), default=None), "{:.2f} %"
        ),
        "test loss": lambda run: _number(_last(run.evaluations, "loss"), "{:.4f}"),
        "steps": lambda run: f"{run.steps:,}",
        "time": lambda run: _with(duration, _whole(run, "seconds")),
        "images/s": lambda run: _number(_whole(run, "samples_per_second"), "{:,.0f}"),
        "density": lambda run: _of_summary(run, "density", "{:.4%}".format),
        "sent per step": lambda run: _of_summary(run, "bytes_sent_per_step", size),
        "less than dense": lambda run: _of_summary(
            run, "compression_ratio", "{:,.1f} times".format
        ),
        "sent in all": lambda run: _with(size, _last(run.training, "bytes_sent_total")),
        "less than dense, in all": lambda run: _of_summary(
            run, "compression_ratio_total", "{:,.1f} times".format
        ),
        "skipped steps": lambda run: _with("{:,}".format, _last(run.training, "skipped_steps")),
        **{phase: _phase(phase) for phase in PHASES},
    }
    return Table(_filled(figures, runs))


def settings(runs: Sequence[Run]) -> tuple[Table, Table]:
    """The settings in which the runs differ, and the others."""
    differ, same = differences(runs, _OF_NO_INTEREST)
    return (
        Table([(name, [_shown(run.config.get(name)) for run in runs]) for name in differ]),
        Table([(name, [_shown(runs[0].config.get(name))]) for name in same]),
    )


def environment(runs: Sequence[Run]) -> Table:
    """What each finished run ran on."""
    return Table(
        _filled(
            {title: _summary_text(name) for name, title in _ENVIRONMENT.items()},
            runs,
        )
    )


def _filled(
    figures: dict[str, Callable[[Run], str | None]], runs: Sequence[Run]
) -> list[tuple[str, list[str]]]:
    """The rows in which any run has something to say."""
    rows = [(name, [figure(run) for run in runs]) for name, figure in figures.items()]
    return [(name, [text or "–" for text in texts]) for name, texts in rows if any(texts)]


def _summary_text(name: str) -> Callable[[Run], str | None]:
    return lambda run: str(run.summary[name]) if run.summary else None


def _phase(name: str) -> Callable[[Run], str | None]:
    def text(run: Run) -> str | None:
        seconds = run.phases.get(name)
        if seconds is None:
            return None
        return f"{1000 * seconds:.3g} ms, {seconds / sum(run.phases.values()):.0%}"

    return text


def _top1(run: Run) -> float | None:
    value: float | None = run.summary["top1"] if run.summary else _last(run.evaluations, "top1")
    return value


def _whole(run: Run, name: str) -> Any:
    """A figure of the whole run, as its own end printed it; of an unfinished one the last recorded."""
    return run.summary[name] if run.summary else _last([*run.training, *run.evaluations], name)


def _last(rows: Sequence[dict[str, Any]], name: str) -> Any:
    found = [row for row in rows if row.get(name) is not None]
    return max(found, key=lambda row: row["step"])[name] if found else None


def _of_summary(run: Run, name: str, text: Callable[[Any], str]) -> str | None:
    return _with(text, run.summary[name]) if run.summary else None


def _with(text: Callable[[Any], str], value: Any) -> str | None:
    return None if value is None else text(value)


def _number(value: float | None, form: str) -> str | None:
    return _with(form.format, value)


def _difference(value: float | None, base: float | None) -> str | None:
    return None if value is None or base is None else f"{value - base:+.2f} points"


def _shown(value: Any) -> str:
    if value is None or value == {}:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)

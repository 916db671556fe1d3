"""The report's charts as Vega-Lite specifications.

Every run has a letter, a colour, a dash pattern and a marker; its curve ends in its letter, so a chart
can be read without colours. Colours and backgrounds are the page's, which knows light from dark.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ggs.report.runs import Row, Run, thinned

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LIGHT = ("#0b5cad", "#b3480a", "#00703c", "#7a1fa2", "#a8123e", "#3d5a66")
DARK = ("#6cb6ff", "#ffa657", "#56d68b", "#d9a6ff", "#ff8fa8", "#a9c3cf")
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 2], [12, 4])
MARKERS = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
PHASES = {
    "computing": "forward, backward, local optimizer",
    "selecting": "selecting, coding, adding",
    "sending": "sending and receiving",
    "waiting": "waiting for the slowest worker",
}

Spec = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """One chart: its headings, what it shows in words, and the specification."""

    title: str
    axis: str
    description: str
    spec: Spec


@dataclass(frozen=True)
class _Axis:
    field: str
    title: str
    format: str


_STEPS = _Axis("step", "steps", "~s")
_BYTES = _Axis("bytes_sent_total", "bytes sent per worker", "~s")
_TIMES = (("seconds", 1, 300), ("minutes", 60, 300 * 60), ("hours", 3600, float("inf")))
"""Unit, its seconds, and up to how many seconds of a run it is used."""


def curves(runs: Sequence[Run]) -> Iterator[Chart]:
    """Test accuracy and training loss against steps, time and bytes."""
    top1 = _data(runs, [run.evaluations for run in runs], "top1")
    loss = _data(runs, [thinned(run.training, "loss") for run in runs], "loss")
    for rows, value, title, unit in (
        (top1, "top1", "Test accuracy", "top-1, %"),
        (loss, "loss", "Training loss", "loss"),
    ):
        for name, axis in (("steps", _STEPS), ("time", _time(runs)), ("bytes", _BYTES)):
            shown = [row for row in rows if name != "bytes" or row[axis.field] > 0]
            if shown:
                yield Chart(
                    title, f"against {name}", f"{title} of each run against {axis.title}.",
                    _curve(shown, runs, axis, value, unit, points=value == "top1"),
                )  # fmt: skip


def exchange(runs: Sequence[Run]) -> Iterator[Chart]:
    """What is sent and what is kept back, against steps; and the time of a step."""
    for value, title, unit in (
        ("bytes_sent", "Sent per step", "bytes per worker"),
        ("residual_norm", "Kept back", "norm of the residual"),
    ):
        rows = _data(runs, [thinned(run.training, value) for run in runs], value)
        shown = [row for row in rows if row[value] > 0]
        if shown:
            spec = _curve(shown, runs, _STEPS, value, unit, points=False)
            yield Chart(title, "against steps", f"{title}, {unit}, against steps.", spec)
    if any(run.phases for run in runs):
        yield Chart("Time of a step", "by what it goes to",
                    "Mean milliseconds of a step by phase and run.", _phases(runs))  # fmt: skip


def _time(runs: Sequence[Run]) -> _Axis:
    longest = max((row["seconds"] for run in runs for row in run.training), default=0.0)
    unit = next(unit for unit, _, most in _TIMES if longest <= most)
    return _Axis(unit, unit, "~g")


def _data(runs: Sequence[Run], rows: Sequence[Sequence[Row]], value: str) -> list[Row]:
    found = []
    for order, (_, own) in enumerate(zip(runs, rows, strict=True)):
        usable = [row for row in own if row.get(value) is not None]
        for number, row in enumerate(usable, 1):
            found.append(
                {
                    "run": _letter(order),
                    "order": order,
                    "step": row["step"],
                    **{unit: row["seconds"] / length for unit, length, _ in _TIMES},
                    "bytes_sent_total": row["bytes_sent_total"],
                    value: row[value],
                    "last": number == len(usable),
                }
            )
    return found


def _letter(order: int) -> str:
    return LETTERS[order % len(LETTERS)] + (str(order // len(LETTERS)) if order >= 26 else "")


def _curve(
    rows: list[Row], runs: Sequence[Run], axis: _Axis, value: str, unit: str, points: bool
) -> Spec:
    values = [row[value] for row in rows]
    logarithmic = (
        value in ("loss", "bytes_sent") and min(values) > 0 and max(values) > 20 * min(values)
    )
    x = _scale(axis.field, axis.title, axis.format, rows, axis is _BYTES)
    y = _scale(value, unit, "~s" if value == "bytes_sent" else "~g", rows, logarithmic)
    letters = [_letter(order) for order in range(len(runs))]
    tooltip = [
        {"field": name, "type": "nominal" if name == "run" else "quantitative", "title": title}
        for name, title in {
            "run": "run", "step": "step", "seconds": "seconds", "bytes_sent_total": "bytes", value: unit,
        }.items()
    ]  # fmt: skip
    colour = {"field": "run", "legend": None, "scale": {"domain": letters}}
    dash = {
        "field": "run",
        "legend": None,
        "scale": {"domain": letters, "range": _cycle(DASHES, runs)},
    }
    shape = {
        "field": "run",
        "legend": None,
        "scale": {"domain": letters, "range": _cycle(MARKERS, runs)},
    }
    return {
        "data": {"values": rows},
        "width": "container",
        "height": 220,
        "padding": 6,
        "encoding": {"x": x, "y": y, "color": colour},
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"strokeDash": dash}},
            {
                "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1 if points else 0},
                "encoding": {"shape": shape, "tooltip": tooltip},
            },
            {
                "transform": [{"filter": "datum.last"}],
                "mark": {
                    "type": "text", "align": "left", "fontWeight": "bold", "fontSize": 13,
                    "dx": {"expr": "7 + 11 * datum.order"},
                },
                "encoding": {"text": {"field": "run"}},
            },
        ],
    }  # fmt: skip


def _scale(field: str, title: str, form: str, rows: Sequence[Row], logarithmic: bool) -> Spec:
    axis: Spec = {"format": form, "tickCount": 5, "labelOverlap": True}
    if logarithmic:
        axis["values"] = _ticks(min(row[field] for row in rows), max(row[field] for row in rows))
    return {
        "field": field,
        "type": "quantitative",
        "title": f"{title} (log)" if logarithmic else title,
        "axis": axis,
        "scale": {"type": "log" if logarithmic else "linear", "zero": False, "nice": False},
    }


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers on a logarithmic axis: a few, whatever its length."""
    decades = math.log10(high / low)
    factors = (1, 2, 5) if decades < 1.5 else (1, 3) if decades < 3 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [factor * 10.0**power for power in powers for factor in factors]


def _cycle(values: Sequence[Any], runs: Sequence[Run]) -> list[Any]:
    return [values[order % len(values)] for order in range(len(runs))]


def _phases(runs: Sequence[Run]) -> Spec:
    letters = [_letter(order) for order in range(len(runs))]
    rows = [
        {
            "run": _letter(order),
            "phase": phase,
            "ms": 1000 * seconds,
            "text": f"{_letter(order)}  {1000 * seconds:.3g} ms, "
            f"{seconds / sum(run.phases.values()):.0%}",
        }
        for order, run in enumerate(runs)
        for phase, seconds in run.phases.items()
    ]
    offset = {"field": "run", "scale": {"domain": letters}}
    return {
        "data": {"values": rows},
        "width": "container",
        "height": {"step": 19},
        "padding": 6,
        "encoding": {
            "y": {
                "field": "phase", "type": "nominal", "title": None, "sort": list(PHASES),
                "scale": {"paddingInner": 0.25},
            },
            "yOffset": offset,
            "x": {
                "field": "ms", "type": "quantitative", "title": "milliseconds",
                "axis": {"tickCount": 4},
            },
        },
        "layer": [
            {
                "mark": {"type": "bar"},
                "encoding": {"color": {"field": "run", "legend": None, "scale": {"domain": letters}}},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": 12},
                "encoding": {"text": {"field": "text"}},
            },
        ],
    }  # fmt: skip


def styles(runs: Sequence[Run]) -> list[Mapping[str, Any]]:
    """Letter, colours, dash pattern and marker of each run, for the legend."""
    return [
        {
            "letter": _letter(order),
            "light": LIGHT[order % len(LIGHT)],
            "dark": DARK[order % len(DARK)],
            "dash": " ".join(map(str, DASHES[order % len(DASHES)])),
            "marker": MARKERS[order % len(MARKERS)],
        }
        for order in range(len(runs))
    ]

"""The report's charts as Vega-Lite specifications.

Every run has a letter, a colour, a dash pattern and a marker; its curve ends in its letter, so a chart
can be read without colours. Colours and backgrounds are the page's, which knows light from dark.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ggs.report.runs import Row, Run, in_order, letter, thinned

LIGHT = ("#0b5cad", "#b3480a", "#00703c", "#7a1fa2", "#a8123e", "#3d5a66")
DARK = ("#6cb6ff", "#ffa657", "#56d68b", "#d9a6ff", "#ff8fa8", "#a9c3cf")
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 2], [12, 4])
MARKERS = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
HEIGHT = 220
"""Of a curve, in pixels."""
_SMALLEST = 1e-100
"""On a logarithmic axis: below it, the powers of ten come to an end."""
_LETTER = 13
"""Pixels that a letter takes, so that two do not cover each other."""
_BESIDE = 40
"""Pixels right of a bar's label, of which Vega foresees a part only when it fits a chart's width."""

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
    """What is drawn along one side of a chart."""

    field: str
    title: str
    format: str | None = None
    """None: plain numbers, with as many digits as the ticks need."""


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
            shown = rows if name != "bytes" else [row for row in rows if row[axis.field]]
            if any(row[value] is not None for row in shown):
                yield Chart(
                    title, f"against {name}", f"{title} of each run against {axis.title}.",
                    _curve(shown, runs, axis, _Axis(value, unit), points=value == "top1"),
                )  # fmt: skip


def exchange(runs: Sequence[Run]) -> Iterator[Chart]:
    """What is sent and what is kept back, against steps; and the time of a step."""
    for value, title, unit, form in (
        ("bytes_sent", "Sent per step", "bytes per worker", "~s"),
        ("residual_norm", "Kept back", "norm of the residual", None),
    ):
        rows = _data(runs, [thinned(run.training, value) for run in runs], value)
        shown = [row for row in rows if row[value] is None or row[value] > 0]
        if any(row[value] is not None for row in shown):
            spec = _curve(shown, runs, _STEPS, _Axis(value, unit, form), points=False)
            yield Chart(title, "against steps", f"{title}, {unit}, against steps.", spec)
    if any(run.phases for run in runs):
        yield Chart("Time of a step", "by what it goes to",
                    "Mean milliseconds of a step by phase and run.", _phases(runs))  # fmt: skip


def _time(runs: Sequence[Run]) -> _Axis:
    longest = max((row["seconds"] for run in runs for row in run.training), default=0.0)
    unit = next(unit for unit, _, most in _TIMES if longest <= most)
    return _Axis(unit, unit)


def _data(runs: Sequence[Run], rows: Sequence[Sequence[Row]], value: str) -> list[Row]:
    """The rows of all runs that have a value; one that is not finite is null, a gap in the curve."""
    return [
        {
            "run": letter(order),
            "step": row["step"],
            **{unit: row["seconds"] / length for unit, length, _ in _TIMES},
            "bytes_sent_total": row["bytes_sent_total"],
            value: row[value] if math.isfinite(row[value]) else None,
        }
        for order, (_, own) in enumerate(zip(runs, rows, strict=True))
        for row in own
        if row.get(value) is not None
    ]


def _curve(rows: list[Row], runs: Sequence[Run], x: _Axis, y: _Axis, points: bool) -> Spec:
    values = [row[y.field] for row in rows if row[y.field] is not None]
    across = _Scale(x, [row[x.field] for row in rows], x is _BYTES, room=0.0)
    wide = min(values) > _SMALLEST and max(values) > 20 * min(values)
    up = _Scale(y, values, y.field in ("loss", "bytes_sent") and wide, room=0.04)
    letters = [letter(order) for order in range(len(runs))]
    tooltip = [
        {"field": name, "type": "nominal" if name == "run" else "quantitative", "title": title}
        for name, title in {
            "run": "run", "step": "step", "seconds": "seconds", "bytes_sent_total": "bytes",
            y.field: y.title,
        }.items()
    ]  # fmt: skip

    def by_run(**scale: Any) -> Spec:
        return {"field": "run", "legend": None, "scale": {"domain": letters, **scale}}

    dash, shape = (by_run(range=_cycle(values, runs)) for values in (DASHES, MARKERS))
    return {
        "data": {"values": rows},
        "width": "container",
        "height": HEIGHT,
        "padding": {"left": 6, "top": 6, "right": 6 + 2 * _LETTER, "bottom": 6},
        "encoding": {"x": across.encoding(), "y": up.encoding(), "color": by_run()},
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 2}, "encoding": {"strokeDash": dash}},
            {
                "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1 if points else 0},
                "encoding": {"shape": shape, "tooltip": tooltip},
            },
            {
                "data": {"values": _ends(rows, across, up)},
                "mark": {
                    "type": "text", "align": "left", "baseline": "middle", "fontWeight": "bold",
                    "fontSize": _LETTER, "dx": 7, "dy": {"expr": "datum.dy"},
                },
                "encoding": {"text": {"field": "run"}},
            },
        ],
    }  # fmt: skip


class _Scale:
    """An axis with the values along it, all of which lie inside its ends.

    Args:
        room: part of the axis that stays free at either end.
    """

    def __init__(
        self, axis: _Axis, values: Sequence[float], logarithmic: bool, room: float
    ) -> None:
        self.axis, self._logarithmic = axis, logarithmic
        low, high = self._along(min(values)), self._along(max(values))
        free = room * (high - low) if high > low else abs(high) * 0.05 or 0.5
        self._low, self._high = low - free, high + free
        if min(values) >= 0 and not logarithmic:
            self._low = max(0.0, self._low)

    def _along(self, value: float) -> float:
        return math.log10(value) if self._logarithmic else value

    def share(self, value: float) -> float:
        """Where ``value`` lies: 0 at the axis's start, 1 at its end."""
        return (self._along(value) - self._low) / (self._high - self._low)

    def encoding(self) -> Spec:
        """The axis as Vega-Lite has it."""
        ticks: Spec = {"tickCount": 5, "labelOverlap": True}
        form, ends = self.axis.format, [self._low, self._high]
        if self._logarithmic:
            ticks["values"] = _ticks(self._low, self._high)
            form, ends = form or "~g", [10.0**end for end in ends]
        return {
            "field": self.axis.field,
            "type": "quantitative",
            "title": f"{self.axis.title} (log)" if self._logarithmic else self.axis.title,
            "axis": {**ticks, "format": form} if form else ticks,
            "scale": {
                "type": "log" if self._logarithmic else "linear",
                "domain": ends,
                "zero": False,
                "nice": False,
            },
        }


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two powers of ten: a few, whatever the distance."""
    factors = (1, 2, 5) if high - low < 1.5 else (1, 3) if high - low < 3 else (1,)
    powers = range(math.floor(low), math.ceil(high) + 1, max(1, round((high - low) / 8)))
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in ticks if low <= math.log10(tick) <= high]


def _ends(rows: Sequence[Row], across: _Scale, up: _Scale) -> list[Row]:
    """Each run's last point, with the pixels that its letter is moved so that it covers no other."""
    last = {row["run"]: row for row in rows if row[up.axis.field] is not None}
    ends = sorted(last.values(), key=lambda row: across.share(row[across.axis.field]))
    moved_ends, group = [], list[Row]()
    for number, row in enumerate(ends, 1):
        group.append(row)
        here = across.share(row[across.axis.field])
        if number == len(ends) or across.share(ends[number][across.axis.field]) - here > 0.06:
            group.sort(key=lambda row: -up.share(row[up.axis.field]))
            wanted = [HEIGHT * (1 - up.share(row[up.axis.field])) for row in group]
            for row, height, moved in zip(group, wanted, apart(wanted), strict=True):
                moved_ends.append({**row, "dy": round(moved - height, 1)})
            group = []
    return moved_ends


def apart(wanted: Sequence[float]) -> list[float]:
    """Places on a chart's height for letters, near the ``wanted`` ones (ascending), none over another.

    Letters that would touch are a block, in the middle of where its letters want to be.
    """
    gap = min(_LETTER, HEIGHT / len(wanted))
    blocks: list[list[float]] = []  # of a letter's height less those of the letters before it
    for number, height in enumerate(wanted):
        blocks.append([height - gap * number])
        while len(blocks) > 1 and _mean(blocks[-1]) < _mean(blocks[-2]):
            touching = blocks.pop()
            blocks[-1] += touching
    most = HEIGHT - gap * (len(wanted) - 1)
    tops = [min(max(0.0, _mean(block)), most) for block in blocks for _ in block]
    return [top + gap * number for number, top in enumerate(tops)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _cycle(values: Sequence[Any], runs: Sequence[Run]) -> list[Any]:
    return [values[order % len(values)] for order in range(len(runs))]


def _phases(runs: Sequence[Run]) -> Spec:
    letters = [letter(order) for order in range(len(runs))]
    rows = [
        {
            "run": letter(order),
            "phase": phase,
            "ms": 1000 * seconds,
            "text": f"{letter(order)}  {run.phase(phase)}",
        }
        for order, run in enumerate(runs)
        for phase, seconds in run.phases.items()
    ]
    longest = max(1000 * seconds for run in runs for seconds in run.phases.values())
    offset = {"field": "run", "scale": {"domain": letters}}
    return {
        "data": {"values": rows},
        "width": "container",
        "height": {"step": 19},
        "padding": {"left": 6, "top": 6, "right": _BESIDE, "bottom": 6},
        "encoding": {
            "y": {
                "field": "phase", "type": "nominal", "title": None,
                "sort": in_order(name for run in runs for name in run.phases),
                "scale": {"paddingInner": 0.25},
            },
            "yOffset": offset,
            "x": {
                "field": "ms", "type": "quantitative", "title": "milliseconds",
                "axis": {"tickCount": 4},
                "scale": {"domain": [0, longest or 1], "nice": False},
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
            "letter": letter(order),
            "light": LIGHT[order % len(LIGHT)],
            "dark": DARK[order % len(DARK)],
            "dash": " ".join(map(str, DASHES[order % len(DASHES)])),
            "marker": MARKERS[order % len(MARKERS)],
        }
        for order in range(len(runs))
    ]

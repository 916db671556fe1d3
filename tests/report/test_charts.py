"""The charts themselves: plain numbers, nothing outside, letters beside their lines."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ggs.report.charts import HEIGHT, Chart, apart, curves, exchange
from ggs.report.runs import read_runs
from tests.report.written import evaluation, training, write

vl_convert = pytest.importorskip("vl_convert")


def charts(*paths: Path) -> list[Chart]:
    runs = read_runs(paths)
    return [*curves(runs), *exchange(runs)]


def one(found: list[Chart], title: str, axis: str) -> Chart:
    return next(chart for chart in found if (chart.title, chart.axis) == (title, axis))


def drawn(chart: Chart, width: int = 300) -> str:
    text: str = vl_convert.vegalite_to_svg({**chart.spec, "width": width})
    return text


def labels(svg: str) -> list[str]:
    """What stands along the axes."""
    return re.findall(r'<text text-anchor="(?:middle|start|end)"[^>]*>([^<]*)</text>', svg)


def test_axes_have_plain_numbers(tmp_path: Path) -> None:
    rows = [training(step, seconds=step, loss=1 + step / 1000) for step in range(1, 71)]
    found = charts(write(tmp_path / "run", rows=[*rows, evaluation(70, seconds=70)]))
    texts = labels(drawn(one(found, "Training loss", "against time")))
    assert {"10", "20", "70"} <= set(texts)
    assert not any("e" in text for text in texts if text[0].isdigit())


def test_every_value_lies_inside_its_chart(tmp_path: Path) -> None:
    rows = [training(step, loss=2.3 * 0.93**step) for step in range(1, 101)]
    paths = [write(tmp_path / "a", rows=rows), write(tmp_path / "b", rows=[training(7, loss=1e-5)])]
    paths.append(write(tmp_path / "c", rows=[training(7, loss=0.5), evaluation(9, top1=100.0)]))
    for chart in charts(*paths):
        for side in ("x", "y"):
            encoding = chart.spec["encoding"][side]
            if encoding["type"] == "quantitative":
                low, high = encoding["scale"]["domain"]
                values = [row[encoding["field"]] for row in chart.spec["data"]["values"]]
                slack = 1e-9 * (high - low)
                assert low - slack <= min(values), (chart.title, side)
                assert max(values) <= high + slack, (chart.title, side)
                ticks = encoding["axis"].get("values", [])
                assert all(low <= tick <= high for tick in ticks), (chart.title, side)


EXTREME: list[dict[str, Any]] = [
    {"loss": 0.0}, {"loss": -1.0}, {"loss": 5e-324}, {"loss": 1e99}, {"bytes_sent": 0},
    {"bytes_sent_total": 2**63}, {"seconds": 0.0}, {"seconds": 1e12}, {"residual_norm": 0.0},
]  # fmt: skip


@pytest.mark.parametrize("last", EXTREME, ids=str)
def test_extreme_values_are_drawn(tmp_path: Path, last: dict[str, Any]) -> None:
    for chart in charts(write(tmp_path / "run", rows=[training(1), training(2, **last)])):
        svg = drawn(chart)
        assert "NaN" not in svg, chart.title
        assert "Infinity" not in svg, chart.title


def test_a_loss_that_is_not_finite_is_a_gap(tmp_path: Path) -> None:
    rows = [training(step, loss=None if step == 30 else 1.0) for step in range(10, 60, 10)]
    svg = drawn(one(charts(write(tmp_path / "run", rows=rows)), "Training loss", "against steps"))
    (line,) = re.findall(r'aria-roledescription="line mark"[^>]* d="([^"]*)"', svg)
    assert line.count("M") == 2


def test_letters_stand_beside_their_lines(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / str(n), rows=[training(1, loss=2.0), training(40, loss=1 + n / 1000)])
        for n in range(5)
    ]
    spec = one(charts(*paths), "Training loss", "against steps").spec
    ends = spec["layer"][-1]["data"]["values"]
    low, high = spec["encoding"]["y"]["scale"]["domain"]
    places = {row["run"]: HEIGHT * (high - row["loss"]) / (high - low) + row["dy"] for row in ends}
    assert sorted(places, key=places.__getitem__) == ["E", "D", "C", "B", "A"]
    ordered = sorted(places.values())
    assert min(b - a for a, b in pairwise(ordered)) == pytest.approx(13, abs=0.2)
    assert max(abs(row["dy"]) for row in ends) < 60


def test_a_letter_stands_where_its_last_drawn_point_is(tmp_path: Path) -> None:
    rows = [training(10), training(20), training(30, loss=None, bytes_sent=0)]
    found = charts(write(tmp_path / "run", rows=rows))
    for title in ("Training loss", "Sent per step"):
        (end,) = one(found, title, "against steps").spec["layer"][-1]["data"]["values"]
        assert (end["run"], end["step"], end["dy"]) == ("A", 20, 0), title


@pytest.mark.parametrize(
    "wanted", [[0.0], [0.0] * 5, [220.0] * 5, [10.0, 100.0, 101.0, 200.0], [110.0] * 40]
)
def test_letters_cover_no_other(wanted: list[float]) -> None:
    places = apart(wanted)
    gap = min(13, HEIGHT / len(wanted))
    assert all(b - a >= gap - 1e-9 for a, b in pairwise(places))
    assert places[0] >= -1e-9
    assert places[-1] <= HEIGHT + 1e-9


def test_letters_with_room_stay_where_they_are() -> None:
    assert apart([10.0, 50.0, 90.0]) == [10.0, 50.0, 90.0]
    assert apart([100.0, 100.0]) == pytest.approx([93.5, 106.5])

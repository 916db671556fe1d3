"""Runs are compared where they can be, and the page says where they cannot."""

from pathlib import Path
from typing import Any

import pytest

from ggs.errors import ConfigurationError
from ggs.report.page import write_report
from tests.report.page import Page
from tests.report.test_reading import report
from tests.report.written import config, evaluation, summary, write

pytest.importorskip("vl_convert")


def said(found: Page) -> str:
    return " ".join(found.paragraphs)


def test_like_runs_are_compared_without_a_word(tmp_path: Path) -> None:
    found = report(write(tmp_path / "a"), write(tmp_path / "b", end=summary(60, top1=91.6)))
    assert "differ in" not in said(found)
    assert found.texts("against A") == ["–", "+1.00 points"]
    assert "Differences in top-1 are to A, the first run given." in found.paragraphs


def test_runs_of_different_length_are_not_compared(tmp_path: Path) -> None:
    found = report(write(tmp_path / "a", 60), write(tmp_path / "b", 250))
    assert (
        "These runs differ in steps: 60 and 250. Their top-1 cannot be compared."
        in found.paragraphs
    )
    assert found.texts("against A") == ["–", "not comparable"]


UNLIKE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"data": "cifar10"}, {}, "data: mnist5k and cifar10"),
    ({"model": "cifarnet"}, {}, "model: lenet5 and cifarnet"),
    ({}, {"world_size": 4}, "number of workers: 2 and 4"),
    (
        {"data": "cifar10"},
        {"world_size": 4},
        "data: mnist5k and cifar10; and in number of workers: 2 and 4",
    ),
]


@pytest.mark.parametrize(("settings", "end", "text"), UNLIKE)
def test_unlike_runs_are_not_compared(
    tmp_path: Path, settings: dict[str, Any], end: dict[str, Any], text: str
) -> None:
    other = write(tmp_path / "b", settings=config(**settings), end=summary(60, **end))
    found = report(write(tmp_path / "a"), other)
    assert f"These runs differ in {text}. Their top-1 cannot be compared." in found.paragraphs
    assert found.texts("against A") == ["–", "not comparable"]


def test_of_several_runs_the_like_ones_are_compared(tmp_path: Path) -> None:
    found = report(
        *(write(tmp_path / name, steps) for name, steps in zip("abc", (60, 250, 60), strict=True))
    )
    assert "differ in steps: 60 and 250. Where they do, their top-1 cannot be compared." in said(
        found
    )
    assert found.texts("against A") == ["–", "not comparable", "+0.00 points"]


def test_a_run_that_has_not_finished_is_told(tmp_path: Path) -> None:
    found = report(write(tmp_path / "a"), write(tmp_path / "b", finished=False))
    assert "B has not finished: the figures are those so far." in found.paragraphs


def test_a_run_is_given_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a")
    (tmp_path / "link").symlink_to(path)
    for other in (path, tmp_path / "link", tmp_path / "b" / ".." / "a"):
        (tmp_path / "b").mkdir(exist_ok=True)
        with pytest.raises(ConfigurationError, match=r"is given twice.*; give every run once$"):
            write_report([path, other], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def dense(path: Path, **settings: Any) -> Path:
    return write(path, settings=config(method="dense", **settings), end=summary(60, top1=92.6))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_only_dense_run_is_the_reference(tmp_path: Path, place: int) -> None:
    paths = [write(tmp_path / "a"), write(tmp_path / "b")]
    paths.insert(place, dense(tmp_path / "dense"))
    found, name = report(*paths), "ABC"[place]
    expected = ["-2.00 points"] * 2
    expected.insert(place, "–")
    assert found.texts(f"against {name}") == expected
    assert f"Differences in top-1 are to {name}, the only dense run" in said(found)


def test_of_two_dense_runs_the_first_run_is_the_reference(tmp_path: Path) -> None:
    found = report(write(tmp_path / "a"), dense(tmp_path / "b"), dense(tmp_path / "c"))
    assert found.texts("against A") == ["–", "+2.00 points", "+2.00 points"]


def test_one_run_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    found = report(write(tmp_path / "a"))
    assert "Differences" not in said(found)
    assert not any(name.startswith("against") for name in found.names())


OF_SPARSE_RUNS = ("density", "density_warmup", "every", "scope", "values", "exchange", "workers_per_node",
                  "dense_below")  # fmt: skip


def rows_of(found: Page, name: str) -> list[list[str]]:
    """All rows of settings called ``name``; the results have a density of their own, with a %."""
    return [row[1:] for row in found.rows if row[0] == name and "%" not in row[1]]


@pytest.mark.parametrize("density", [0.01, 0.5], ids=["equal", "different"])
def test_settings_without_effect_on_a_dense_run_are_dashes(tmp_path: Path, density: float) -> None:
    found = report(write(tmp_path / "a"), dense(tmp_path / "b", density=density))
    assert rows_of(found, "density") == [["0.01", "–"]]
    assert rows_of(found, "workers_per_node") == [["unset", "–"]]
    for name in OF_SPARSE_RUNS:
        assert [row[1] for row in rows_of(found, name)] == ["–"], name
    assert rows_of(found, "batchnorm") == [["average"]]
    assert rows_of(found, "method") == [["ggs, adam", "dense, adam"], ["ggs", "dense"]]
    assert "These have no effect on dense runs:" in found.paragraphs


def test_differences_of_sparse_runs_are_told_beside_a_dense_one(tmp_path: Path) -> None:
    other = write(tmp_path / "b", settings=config(density=0.1))
    found = report(write(tmp_path / "a"), other, dense(tmp_path / "c"))
    assert rows_of(found, "density") == [["0.01", "0.1", "–"]]
    assert rows_of(found, "scope") == [["global", "global", "–"]]


def test_dense_runs_alone_have_no_settings_of_sparse_ones(tmp_path: Path) -> None:
    found = report(dense(tmp_path / "a"), dense(tmp_path / "b", density=0.5))
    assert not any(rows_of(found, name) for name in OF_SPARSE_RUNS)
    assert "The runs have the same settings." in found.paragraphs


def test_steps_are_those_of_the_record_where_the_summary_lacks_them(tmp_path: Path) -> None:
    end = {"top1": 90.0}
    rows = [evaluation(30), evaluation(70)]
    found = report(write(tmp_path / "a", rows=rows, end=end), write(tmp_path / "b"))
    assert found.texts("steps") == ["70", "60"]

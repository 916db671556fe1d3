"""Tables and picture of the language study, and that the page shows what was measured."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Import = Callable[[str], ModuleType]


@pytest.fixture
def rows(benchmark: Import) -> Callable[..., list[dict[str, Any]]]:
    """Results of a grid that nobody has measured."""
    grids = benchmark("language_grids")

    def make(name: str, loss: Callable[[Any], float], seeds: int = 2) -> list[dict[str, Any]]:
        return [
            {
                **dataclasses.asdict(run),
                "loss": loss(run),
                "bytes_per_step": 1000.0 * (run.density or 10.0),
                "bytes_total": round(500_000 * (run.density or 10.0)),
                "dense_bytes_per_step": 10_000,
            }
            for run in grids.runs([name], range(seeds), 64)
        ]

    return make


def test_seeds_are_one_row_and_dense_is_compared_seed_by_seed(
    benchmark: Import, rows: Callable[..., list[dict[str, Any]]]
) -> None:
    tables = benchmark("language_tables")
    found = rows(
        "lr", lambda run: 2.0 + run.seed + (run.method == "ggs") * 0.25 + abs(run.lr - 6e-3)
    )
    lines = tables.tables(["lr"], found, 64).splitlines()
    assert lines[0] == "### Learning rates (`lr`)"
    assert lines[2] == "All: optimizer adamw, warm-up 0, every 1."
    assert "| method | lr | momentum | density | values | loss | seeds |" in lines[4]
    dense = [line for line in lines if line.startswith("| dense | 0.006")]
    assert dense == [
        "| dense | 0.006 | 0.9 | - | - | 2.500 ± 0.707 | 2 | +0.000 | 10,000 | 1.0x | 5,000,000 | 1.0x |"
    ]
    sparse = [line for line in lines if line.startswith("| ggs | 0.006 | 0.5 | 0.01")]
    assert sparse == ["| ggs | 0.006 | 0.5 | 0.01 | sign | 2.750 ± 0.707 | 2 | +0.250 | "
                      "10 | 1,000.0x | 5,000 | 1,000.0x |"]  # fmt: skip


def test_momentum_and_density_are_a_grid(
    benchmark: Import, rows: Callable[..., list[dict[str, Any]]]
) -> None:
    tables = benchmark("language_tables")
    found = rows("momentum", lambda run: 1.0 + run.momentum + (run.density or 0.0), seeds=1)
    lines = tables.tables(["momentum"], found[:-1], 64).splitlines()
    assert lines[4] == (
        "| momentum | density 0.001 | density 0.004 | density 0.01 | density 0.04 | density 0.1 | "
        "density 1 | dense |"
    )
    assert lines[6] == "| 0 | 1.001 | 1.004 | 1.010 | 1.040 | 1.100 | 2.000 | 1.000 |"
    assert lines[11] == "| 0.9 | 1.901 | 1.904 | 1.910 | 1.940 | 2.000 | 2.900 | - |"


def test_every_method_is_drawn_at_its_best_learning_rate(
    benchmark: Import, rows: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    tables, picture = benchmark("language_tables"), benchmark("language_picture")
    found = rows("targets", lambda run: 2 + 10 * abs(run.lr - 6e-3), 1) + rows(
        "rivals", lambda run: 3 + run.lr, 1
    )
    variants = tables.measured(["targets", "rivals"], found, 64)
    best = tables.tuned(variants)
    assert len(best) == len(variants) / 3
    assert {v.setting.lr for v in best if v.setting.method in ("dense", "ggs")} == {6e-3}
    assert {v.setting.lr for v in best if v.setting.method == "powersgd"} == {3e-3}
    files = []
    for name in ("a.svg", "b.svg"):
        picture.draw(variants, tmp_path / name)
        files.append((tmp_path / name).read_text())
    assert files[0] == files[1]
    for label, _, _ in picture.STYLES.values():
        assert f">{label}<" in files[0], label


def test_a_rate_with_fewer_seeds_is_no_better(
    benchmark: Import, rows: Callable[..., list[dict[str, Any]]]
) -> None:
    tables = benchmark("language_tables")
    found = [row for row in rows("lr", lambda run: run.lr + run.seed) if row["method"] == "dense"]
    lucky = [row for row in found if not (row["lr"] == 1.5e-3 and row["seed"] == 1)]
    assert tables.best_dense(tables.measured(["lr"], found, 64)).setting.lr == 1.5e-3
    assert tables.best_dense(tables.measured(["lr"], lucky, 64)).setting.lr == 3e-3


def test_the_page_shows_what_was_measured(benchmark: Import, root: Path) -> None:
    tables, results_file = benchmark("language_tables"), benchmark("results_file")
    rows = results_file.load(root / "docs" / "results" / "language.jsonl")
    assert rows
    page = (root / "docs" / "language.md").read_text()
    assert page == tables.put_into(page, tables.tables(tables.GRIDS, rows, 64))


def test_the_picture_is_that_of_the_results(benchmark: Import, root: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    tables, results_file = benchmark("language_tables"), benchmark("results_file")
    rows = results_file.load(root / "docs" / "results" / "language.jsonl")
    variants = tables.measured(["targets", "rivals"], rows, 64)
    benchmark("language_picture").draw(variants, tmp_path / "drawn.svg")
    words = re.compile(
        r"<text[^>]*>([^<]*[a-z][^<]*)</text>"
    )  # ticks depend on matplotlib's version
    shown = (root / "docs" / "results" / "language.svg").read_text()
    assert words.findall(shown) == words.findall((tmp_path / "drawn.svg").read_text())
    assert "(results/language.svg)" in (root / "docs" / "language.md").read_text()

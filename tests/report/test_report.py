"""The report of real runs: its figures, its charts, and that one file is all it needs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ggs.errors import ConfigurationError, DataError
from ggs.report.charts import curves, exchange
from ggs.report.page import render, write_report
from ggs.report.runs import POINTS, Run, names, read_run, thinned
from ggs.train.arguments import build
from ggs.train.config import TrainConfig
from ggs.train.worker import train
from tests.report.page import Page
from tests.report.written import training, write
from tests.worker_pool import WorkerPool

vl_convert = pytest.importorskip("vl_convert")


def run(rank: int, size: int, config: TrainConfig) -> None:
    train(config, torch.device("cpu"), None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, workers: WorkerPool) -> tuple[Path, Path]:
    """A run of GGS and a dense one, two workers each."""
    folder = tmp_path_factory.mktemp("runs")
    shared = {
        "steps": 40, "evaluate_every": "20 steps", "log_every": 5, "device": "cpu",
        "density": 0.01, "density_warmup": "10 steps", "tensorboard": False,
    }  # fmt: skip
    for method in ("ggs", "dense"):
        settings = {**shared, "method": method, "run_dir": folder / method}
        workers.run(2, run, build(TrainConfig, settings))
    return folder / "ggs", folder / "dense"


def page(*paths: Path) -> Page:
    return Page(render([read_run(path) for path in paths]))


def test_the_figures_are_the_runs_own(runs: tuple[Path, Path]) -> None:
    ours, dense = (json.loads((path / "summary.json").read_text()) for path in runs)
    found = page(*runs)
    assert found.texts("top-1") == [f"{ours['top1']:.2f} %", f"{dense['top1']:.2f} %"]
    assert found.texts("against B") == [f"{ours['top1'] - dense['top1']:+.2f} points", "–"]
    assert found.texts("less than dense")[0] == f"{ours['compression_ratio']:,.1f} times"
    assert found.texts("sent per step")[1] == "246.8 kB"
    assert found.texts("method") == ["ggs, adam", "dense, adam"]
    assert found.texts("state") == ["finished", "finished"]
    rates = [f"{summary['samples_per_second']:,.0f}" for summary in (ours, dense)]
    assert found.texts("images/s") == rates
    assert found.texts("PyTorch") == [torch.__version__] * 2
    settings = [row for row in found.rows if row[1:] == ["ggs", "dense"]]
    assert settings == [["method", "ggs", "dense"]]


def test_the_file_needs_no_network(runs: tuple[Path, Path], tmp_path: Path) -> None:
    size = write_report(runs, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert size == len(text.encode()) < 1_500_000
    assert Page(text).addresses == []
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text[: text.index("<body>")]


def test_every_chart_can_be_drawn_and_read_without_colours(runs: tuple[Path, Path]) -> None:
    found = [read_run(path) for path in runs]
    charts = [*curves(found), *exchange(found)]
    assert [(chart.title, chart.axis) for chart in charts] == [
        ("Test accuracy", "against steps"),
        ("Test accuracy", "against time"),
        ("Test accuracy", "against bytes"),
        ("Training loss", "against steps"),
        ("Training loss", "against time"),
        ("Training loss", "against bytes"),
        ("Sent per step", "against steps"),
        ("Kept back", "against steps"),
        ("Time of a step", "by what it goes to"),
    ]
    for chart in charts:
        svg = vl_convert.vegalite_to_svg({**chart.spec, "width": 300})
        letters = set(re.findall(r">([AB])(?:  [^<]*)?</text>", svg))
        assert letters == ({"A"} if chart.title == "Kept back" else {"A", "B"}), chart.title
        if chart.title == "Training loss":
            assert len(set(re.findall(r'stroke-dasharray="([^"]+)"', svg))) == 2


def test_curves_end_where_the_record_does(runs: tuple[Path, Path]) -> None:
    specs: list[dict[str, Any]] = json.loads(page(*runs).scripts["specs"])
    ends = specs[0]["layer"][-1]["data"]["values"]
    summary = json.loads((runs[0] / "summary.json").read_text())
    last = next(row for row in ends if row["run"] == "A")
    assert last["step"] == 40
    assert last["top1"] == summary["top1"]
    assert last["bytes_sent_total"] == summary["bytes_sent_total"]


def test_an_unfinished_run_can_be_looked_at(runs: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "running"
    shutil.copytree(runs[0], path)
    (path / "summary.json").unlink()
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:4]) + lines[4][:30])
    found = page(path, runs[1])
    assert found.texts("state") == ["unfinished, step 20", "finished"]
    assert found.texts("less than dense")[0] == "–"


def test_a_run_of_one_worker_sends_nothing(tmp_path: Path) -> None:
    settings = {"steps": 4, "log_every": 2, "run_dir": tmp_path, "device": "cpu"}
    train(build(TrainConfig, settings), torch.device("cpu"), None)
    titles = {(c.title, c.axis) for c in curves([read_run(tmp_path)])}
    assert ("Training loss", "against steps") in titles
    assert ("Training loss", "against bytes") not in titles
    assert page(tmp_path).texts("sent per step") == ["0 B"]


@pytest.mark.parametrize("damage", ["{broken", '{"kind": "train", "step": 1}', "[]", "[" * 10**5])
def test_a_damaged_run_is_told(runs: tuple[Path, Path], tmp_path: Path, damage: str) -> None:
    path = tmp_path / "damaged"
    shutil.copytree(runs[0], path)
    with (path / "metrics.jsonl").open("a") as file:
        file.write(damage + "\n")
    with pytest.raises(DataError, match=r"line 11 of .*metrics.jsonl is damaged"):
        read_run(path)


def test_names_are_as_short_as_can_be() -> None:
    paths = [Path("/a/one/run"), Path("/a/two/run"), Path("/b/two/run")]
    assert names([_named(path) for path in paths[:1]]) == ["run"]
    assert names([_named(path) for path in paths[:2]]) == ["one/run", "two/run"]
    assert names([_named(path) for path in paths]) == ["a/one/run", "a/two/run", "b/two/run"]


def _named(path: Path) -> Any:
    return Run(path, {}, [], [], None)


def test_long_records_are_drawn_through_means() -> None:
    rows = [{"step": step, "loss": float(step % 10)} for step in range(1, 10_001)]
    drawn = thinned([*rows, {"step": 10_001, "loss": None}], "loss")
    assert len(drawn) <= POINTS
    assert drawn[-1]["step"] == 10_000
    assert sum(row["loss"] for row in drawn) / len(drawn) == pytest.approx(4.5, abs=0.1)
    assert thinned(rows[:5], "loss") == rows[:5]


def test_names_from_outside_cannot_become_code(runs: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "<script>alert(1)<"
    shutil.copytree(runs[0], path)
    with (path / "config.yaml").open("a") as file:
        file.write("note: '</script><script>alert(2)</script>'\n")
    text = render([read_run(path), read_run(runs[1])])
    assert "<script>alert" not in text
    assert text.count("<script") == page(*runs).scripts.__len__() + 1


def test_only_a_report_is_replaced(runs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "notes.html"
    out.write_text("my notes")
    with pytest.raises(ConfigurationError, match="exists and is no report"):
        write_report(runs, out)
    assert out.read_text() == "my notes"
    for _ in range(2):
        write_report(runs, tmp_path / "report.html")


def test_the_command(runs: tuple[Path, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ggs.cli.main", "report"]
    done = subprocess.run([*command, *map(str, runs)], cwd=tmp_path, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("report.html: 2 runs, ")
    wrong = subprocess.run([*command, "nowhere"], cwd=tmp_path, capture_output=True, text=True,
                           check=False)  # fmt: skip
    assert wrong.returncode != 0
    assert wrong.stderr.strip() == (
        "ggs: nowhere holds no run: give a folder with config.yaml and metrics.jsonl, as ggs train leaves it"
    )


BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def in_browser(page: Path, width: int) -> str:
    """The document that a browser makes of ``page`` in a window of ``width`` pixels."""
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},900",
        "--virtual-time-budget=8000", "--dump-dom",
    ]  # fmt: skip
    done = subprocess.run([str(BROWSER), *flags, page.as_uri()], capture_output=True, text=True,
                          timeout=280, check=True)  # fmt: skip
    return done.stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_draws_it(runs: tuple[Path, Path], tmp_path: Path) -> None:
    write_report(runs, tmp_path / "report.html")
    text = in_browser(tmp_path / "report.html", 1200)
    assert len(re.findall(r'<svg[^>]* class="marks"', text)) == 9


MEASURE = """
<script>
setTimeout(() => {
  const out = [];
  for (const svg of document.querySelectorAll("svg.marks"))
    for (const text of svg.querySelectorAll("text"))
      out.push(svg.getBoundingClientRect().right - text.getBoundingClientRect().right);
  document.body.dataset.room = Math.min(...out).toFixed(1);
}, 4000);
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [1200, 500])
def test_no_label_is_cut_off(tmp_path: Path, width: int) -> None:
    phases = {"computing": 0.0142, "sending": 0.0101, "waiting": 0.0103}
    rows = [training(step, step_seconds=phases) for step in (10, 20)]
    path = tmp_path / "report.html"
    write_report([write(tmp_path / name, rows=rows) for name in "abcde"], path)
    text, _, _ = path.read_text().rpartition("</body>")
    path.write_text(f"{text}{MEASURE}</body></html>")
    room = re.search(r'data-room="([-\d.]+)"', in_browser(path, width))
    assert room is not None
    assert float(room[1]) >= 0

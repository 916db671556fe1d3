"""Runs of other versions, diverged ones and damaged ones: shown, or refused in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ggs.errors import ConfigurationError, DataError, GGSError
from ggs.report.page import write_report
from tests.report.page import Page
from tests.report.written import config, evaluation, summary, training, write

pytest.importorskip("vl_convert")


def report(*paths: Path) -> Page:
    out = paths[0].parent / "report.html"
    write_report(paths, out)
    return Page(out.read_text())


def refusal(path: Path, kind: type[GGSError] = DataError) -> str:
    """The one line that ``path`` is refused with."""
    with pytest.raises(kind) as caught:
        write_report([path], path.parent / "report.html")
    text = str(caught.value)
    assert "\n" not in text
    return text


OF_SUMMARY = {
    "top1": "top-1", "world_size": "workers", "density": "density", "seconds": "time",
    "samples_per_second": "images/s", "bytes_sent_per_step": "sent per step",
    "compression_ratio": "less than dense", "compression_ratio_total": "less than dense, in all",
    "device": "device", "ggs_version": "GGS", "torch_version": "PyTorch", "python_version": "Python",
}  # fmt: skip


@pytest.mark.parametrize("name", OF_SUMMARY)
def test_a_figure_that_another_version_lacks_is_a_dash(tmp_path: Path, name: str) -> None:
    end = {key: value for key, value in summary(60).items() if key != name}
    found = report(write(tmp_path / "old", end=end), write(tmp_path / "new"))
    old, new = found.texts(OF_SUMMARY[name])
    assert old == ("90.60 %" if name == "top1" else "–")  # the record has the last top-1 too
    assert new not in ("", "–")
    assert found.texts("state") == ["finished", "finished"]


def test_an_empty_summary_is_a_finished_run(tmp_path: Path) -> None:
    found = report(write(tmp_path / "old", end={}), write(tmp_path / "new"))
    assert found.texts("state") == ["finished", "finished"]
    assert found.texts("PyTorch") == ["–", "2.6"]


@pytest.mark.parametrize(
    "end", ["", "{broken", "[]", "[" * 10**5, '{"density": "all"}', '{"steps": -1}']
)
def test_a_damaged_summary_is_told(tmp_path: Path, end: str) -> None:
    text = refusal(write(tmp_path / "run", end=end))
    assert f"{tmp_path / 'run' / 'summary.json'} is damaged" in text
    assert text.endswith("repair the file, or leave this run out of the report")


@pytest.mark.parametrize(
    "settings", ["", "lr: 0.1\n", "method:\n", "method: 3\n", "- method\n", "a: [\n"]
)
def test_settings_that_tell_no_run_are_told(tmp_path: Path, settings: str) -> None:
    path = write(tmp_path / "run")
    (path / "config.yaml").write_text(settings)
    text = refusal(path)
    assert str(path / "config.yaml") in text
    assert text.endswith("leave this run out of the report")


def test_settings_that_an_older_version_lacked_are_dashes(tmp_path: Path) -> None:
    old = {"method": "ggs", "density": 0.01, "lr": 0.1}
    found = report(write(tmp_path / "old", settings=old), write(tmp_path / "new"))
    assert found.texts("method") == ["ggs", "ggs, adam"]
    assert found.texts("model") == ["–", "lenet5 on mnist5k"]
    assert found.texts("lr") == ["0.1", "0.001"]
    assert found.texts("seed") == ["–", "0"]


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "null"])
def test_a_diverged_run_can_be_looked_at(tmp_path: Path, literal: str) -> None:
    rows = [
        training(10), training(20),
        *(json.dumps(training(step, loss="@")).replace('"@"', literal) for step in (30, 40)),
        json.dumps(evaluation(40, top1=10.0, loss="@")).replace('"@"', literal),
    ]  # fmt: skip
    found = report(write(tmp_path / "bad", 40, rows=rows, end=summary(40, top1=10.0)))
    assert found.texts("training loss") == ["not finite"]
    assert found.texts("test loss") == ["not finite"]
    assert found.texts("top-1") == ["10.00 %"]
    specs = json.loads(found.scripts["specs"])
    losses = next(spec for spec in specs if spec["encoding"]["y"]["field"] == "loss")
    assert [row["loss"] for row in losses["data"]["values"]] == [0.2, 0.1, None, None]


def test_a_run_that_was_never_finite_can_be_looked_at(tmp_path: Path) -> None:
    rows = [training(10, loss=None), evaluation(10, top1=None, loss=None)]
    found = report(
        write(tmp_path / "bad", rows=rows, end=summary(10, top1=None)), write(tmp_path / "good", 10)
    )
    assert found.texts("top-1") == ["not finite", "90.10 %"]
    assert found.texts("best top-1") == ["not finite", "90.10 %"]
    assert not any(name.startswith("against") for name in found.names())


WRONG = [
    *((name, value, training) for value in (None, "text", -1, float("nan"), [])
      for name in ("step", "seconds")),
    *((name, value, evaluation) for value in (None, "text") for name in ("step", "seconds")),
    *((name, "text", training) for name in ("bytes_sent", "bytes_sent_total", "loss", "step_seconds")),
    *((name, "text", evaluation) for name in ("top1", "loss", "bytes_sent_total")),
    ("bytes_sent", 1.5, training), ("bytes_sent_total", 10**30, training), ("seconds", 10**400, training),
    ("step_seconds", {"computing": None}, training), ("step_seconds", {"computing": "text"}, training),
    ("step_seconds", {"computing": -0.1}, training), ("samples_per_second", "many", training),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "row"), WRONG)
def test_a_wrong_field_is_told_with_its_line(
    tmp_path: Path, name: str, value: Any, row: Any
) -> None:
    path = write(tmp_path / "run", rows=[training(10), {**row(20), name: value}, evaluation(30)])
    text = refusal(path)
    assert text.startswith(
        f"line 2 of {path / 'metrics.jsonl'} is damaged, or of another version of ggs: {name}"
    )


@pytest.mark.parametrize("name", ["step", "seconds", "loss"])
def test_what_no_curve_can_do_without_is_told(tmp_path: Path, name: str) -> None:
    row = {key: value for key, value in training(20).items() if key != name}
    text = refusal(write(tmp_path / "run", rows=[training(10), row]))
    assert "line 2 of" in text
    assert f"{name} is missing" in text


OPTIONAL = ("bytes_sent", "bytes_sent_total", "samples_per_second", "skipped_steps", "residual_norm",
            "step_seconds")  # fmt: skip


@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize("null", [True, False], ids=["null", "missing"])
def test_what_a_curve_can_do_without_may_lack(tmp_path: Path, name: str, null: bool) -> None:
    rows = [training(step) for step in (10, 20)]
    for row in rows:
        del row[name]
        row |= {name: None} if null else {}
    found = report(
        write(tmp_path / "old", 20, rows=rows, finished=False), write(tmp_path / "new", 20)
    )
    title = {"bytes_sent_total": "sent in all", "samples_per_second": "images/s",
             "skipped_steps": "skipped steps", "step_seconds": "computing"}.get(name)  # fmt: skip
    if title:
        old, new = found.texts(title)
        assert (old, new != "–") == ("–", True)


def test_a_run_without_a_line_yet_can_be_looked_at(tmp_path: Path) -> None:
    found = report(write(tmp_path / "young", rows=[], finished=False))
    assert found.texts("state") == ["unfinished, step 0"]


def test_phases_are_those_of_the_record(tmp_path: Path) -> None:
    old = {"computing": 0.02, "sending": 0.02}
    new = {"waiting": 0.0, "polishing": 0.01, "sending": 0.01, "loading": 0.02}
    rows = [
        training(10, step_seconds=old),
        training(20, step_seconds=old),
        training(30, step_seconds=new),
    ]
    found = report(write(tmp_path / "run", rows=rows, finished=False))
    shown = {"loading", "computing", "sending", "waiting", "polishing"}
    assert [name for name in found.names() if name in shown] == [
        "loading", "computing", "sending", "waiting", "polishing",
    ]  # fmt: skip
    assert found.texts("sending") == ["15 ms, 38%"]
    assert found.texts("loading") == ["10 ms, 25%"]


def test_phases_of_no_time_have_no_share(tmp_path: Path) -> None:
    rows = [training(10, step_seconds={"computing": 0.0, "sending": 0})]
    assert report(write(tmp_path / "run", rows=rows)).texts("computing") == ["0 ms"]


def test_long_phases_are_plain_numbers(tmp_path: Path) -> None:
    rows = [training(10, step_seconds={"computing": 12.3456})]
    assert report(write(tmp_path / "run", rows=rows)).texts("computing") == ["12,346 ms, 100%"]


def test_huge_values_are_not_finite(tmp_path: Path) -> None:
    rows = [training(step, loss=1e308, residual_norm=1e308) for step in range(1, 2001)]
    found = report(write(tmp_path / "run", rows=[*rows, training(2001, loss=5e-324)]))
    assert found.texts("training loss") == ["0.0000"]


def test_a_name_that_is_no_text_is_shown_as_python_writes_it(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path / "caf") + b"\xe9"))
    found = report(write(path), write(tmp_path / "other"))
    assert any("caf\\udce9" in cell for row in found.rows for cell in row)


@pytest.mark.parametrize(
    "name", ["x" * 300, "a\0b", "caf\udce9", "nowhere/report.html", "notes/report.html"]
)
def test_an_impossible_file_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"^out: cannot write .*; give another --out$"):
        write_report([write(tmp_path / "run")], tmp_path / name)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_an_impossible_folder_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    text = refusal(tmp_path / name, ConfigurationError)
    assert "holds no run" in text or "cannot be read" in text


def test_the_command_says_it_in_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "run", settings={**config(), "method": None})
    command = [sys.executable, "-m", "ggs.cli.main", "report", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines() == [
        f"ggs: {path / 'config.yaml'} is damaged, or of another version of ggs: method is null: input "
        "should be a valid string; repair the file, or leave this run out of the report"
    ]

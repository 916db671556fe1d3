"""What a person reads."""

import os
import sys
from typing import Any

import pytest

from ggs.text import readable_bytes
from ggs.train.console import LINE_EVERY, Reporter, duration

SUMMARY: dict[str, Any] = {
    "method": "ggs",
    "model": "lenet5",
    "data": "mnist5k",
    "optimizer": "adam",
    "top1": 97.1,
    "top1_replicas_mean": None,
    "test_images": 1000,
    "world_size": 2,
    "density": 0.001,
    "density_warmup_steps": 10,
    "settled_steps": 90,
    "steps": 100,
    "skipped_steps": 0,
    "seconds": 61.0,
    "samples_per_second": 1234.5,
    "bytes_sent_per_step": 379.0,
    "dense_bytes_per_step": 246_824,
    "compression_ratio": 651.25,
    "bytes_sent_total": 2_500_000,
    "compression_ratio_total": 57.2,
    "parameters": 61_706,
}


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (379, "379 B"), (1400, "1.4 kB"), (3.2e6, "3.2 MB"), (5e15, "5000.0 TB")],
)
def test_sizes(count: float, text: str) -> None:
    assert readable_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(8.44, "8.4 s"), (187, "3:07"), (8100, "2:15:00"), (3599.6, "1:00:00")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_summary_names_what_a_person_wants_to_know(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter(100, 10).summary(SUMMARY, "runs/quickstart")
    page = capsys.readouterr().out
    for words in (
        "lenet5 (61,706 parameters) on mnist5k, 2 workers, GGS around adam",
        "97.10 % of 1,000 test images",
        "379 B per worker and step after the density warm-up",
        "246.8 kB per worker and step: 651.2 times as much",
        "57.2 times as much",
        "runs/quickstart",
    ):
        assert words in page
    assert "exchange" not in page
    assert "skipped" not in page
    assert "resumed" not in page


def test_local_steps_are_told_by_exchange_and_by_step(capsys: pytest.CaptureFixture[str]) -> None:
    local = {"every": 4, "bytes_sent_per_exchange": 1516.0, "density": 0.004}
    Reporter(100, 10).summary({**SUMMARY, **local}, "x")
    page = capsys.readouterr().out
    assert "GGS around adam, 4 local steps between exchanges" in page
    assert (
        "379 B per worker and step after the density warm-up, 1.5 kB in each exchange, every 4 steps "
        "(density 0.4000%)"
    ) in page


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (60, "1,234 images/s (all figures are of the whole run, resumed after step 60)"),
        (100, "(all figures are of the finished run; nothing was trained now)"),
    ],
)
def test_a_resumed_runs_summary_says_what_its_figures_are_of(
    step: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Reporter(100, 10).summary({**SUMMARY, "resumed_from_step": step}, "x")
    assert words in capsys.readouterr().out


def test_other_summaries_say_what_is_different(capsys: pytest.CaptureFixture[str]) -> None:
    other = {
        **SUMMARY,
        "method": "dense",
        "world_size": 1,
        "skipped_steps": 3,
        "bytes_sent_total": 0,
    }
    other |= {"top1_replicas_mean": 96.0, "top1_replicas_min": 95.0}
    Reporter(100, 10).summary(other, "x")
    page = capsys.readouterr().out
    assert "1 worker, adam on dense averaged gradients" in page
    assert "one worker has nobody to send to" in page
    assert "96.00 % on average, the worst 95.00 %" in page
    assert "3 steps with NaN" in page


def test_no_forecast_is_made_from_the_first_slow_steps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    reporter = Reporter(1000, 10)
    for step, seconds in (
        (10, 140.0),
        (110, 160.0),
        (510, 240.0),
    ):  # compiled for 40 s, then 5 steps/s
        now[0] = seconds
        reporter.step(step, 0, 0.5, 1000.0, 379)
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.endswith("379 B/step")
    assert second.endswith("  2:58 left")
    assert third.endswith("  1:38 left")


def test_plain_output_is_quiet_between_evaluations(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]  # on a real clock, a line would be due where the machine stands still for a while
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    reporter = Reporter(1000, 10)
    for step in range(1, 200):
        now[0] += 0.05
        reporter.step(step, 0, 0.5, 1000.0, 379)
    reporter.evaluation(200, 90.0, 0.25)
    assert capsys.readouterr().out == "step 200/1,000  test top-1 90.00 %  loss 0.2500\n"
    now[0] = 100.0 + LINE_EVERY
    reporter.step(201, 2, 0.5, 1000.0, 379)
    line = capsys.readouterr().out
    for words in ("step 201/1,000", "epoch 3/10", "top-1 90.00 %", "1,000 images/s", "379 B/step"):
        assert words in line


@pytest.mark.parametrize("place", ["full disk", "closed pipe"])
def test_a_training_that_can_show_nothing_goes_on(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "full disk":
        stdout = open("/dev/full", "w")  # noqa: SIM115
    else:
        reader, writer = os.pipe()
        os.close(reader)
        stdout = os.fdopen(writer, "w")
    with stdout, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stdout)
        reporter = Reporter(100, 10)
        reporter.evaluation(1, 90.0, 0.25)
        reporter.evaluation(2, 90.0, 0.25)
        reporter.summary(SUMMARY, "runs/quickstart")
    reason = "No space left on device" if place == "full disk" else "Broken pipe"
    assert capsys.readouterr().err == (
        f"ggs: warning: standard output takes no more ({reason}): the training goes on unseen, its results "
        "will be in its run folder\n"
    )

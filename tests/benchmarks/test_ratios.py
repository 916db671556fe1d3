"""Ratios with their quartiles, and what makes them say nothing."""

from collections.abc import Callable
from types import ModuleType

import pytest

Import = Callable[[str], ModuleType]


def test_a_ratio_is_taken_round_by_round(benchmark: Import) -> None:
    ratios = benchmark("ratios")
    row = ratios.ratio_row([2.0, 20.0, 3.0, 8.0, 5.0], [1.0, 10.0, 1.0, 2.0, 1.0], "step_")
    assert row == {"step_ratio": 3.0, "step_ratio_quartiles": [2.0, 4.0]}
    assert ratios.seconds_row([0.5]) == {"seconds": 0.5, "seconds_quartiles": [0.5, 0.5]}


@pytest.mark.parametrize(
    ("unit", "others", "reason"),
    [
        ([1.0, 1.1, 1.0, 1.1], None, None),
        ([1.0, 1.1, 1.0, 1.1], 0.05, None),
        ([1.0, 1.1, 1.0, 1.1], 0.5, "other processes took 50% of the processors"),
        ([1.0, 3.0, 1.0, 3.0], 0.0, "the unit's own quartiles are 100% of its median apart"),
    ],
)
def test_a_busy_machine_is_noticed(
    benchmark: Import, unit: list[float], others: float | None, reason: str | None
) -> None:
    assert benchmark("ratios").too_busy(unit, others) == reason


def test_what_others_take_leaves_out_what_this_process_took(
    benchmark: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratios = benchmark("ratios")
    monkeypatch.setattr(ratios.os, "cpu_count", lambda: 4)
    now = {"busy": 100.0, "own": 1.0, "wall": 50.0}
    monkeypatch.setattr(ratios, "_busy_seconds", lambda: now["busy"])
    monkeypatch.setattr(ratios.time, "process_time", lambda: now["own"])
    monkeypatch.setattr(ratios.time, "perf_counter", lambda: now["wall"])
    neighbours = ratios.Neighbours()
    now.update(busy=130.0, own=11.0, wall=60.0)
    assert neighbours.share() == pytest.approx(0.5)  # 20 of 40 seconds


@pytest.mark.parametrize("workers", [1, 64, 256])
def test_the_model_of_stragglers_agrees_with_the_sum(benchmark: Import, workers: int) -> None:
    stragglers = benchmark("stragglers")
    for case in (stragglers.Slowness("by chance", chance=0.003, late=2.0),
                 stragglers.Slowness("always", always=1.5)):  # fmt: skip
        row = stragglers.simulate(case, workers, steps=4000)
        expected = stragglers.expected_without_jitter(case, workers)
        assert row["step"] == pytest.approx(expected, abs=0.03)

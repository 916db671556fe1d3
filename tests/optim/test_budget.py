"""A budget of bytes, and what it becomes."""

import logging
from typing import Any

import pytest
import torch
from torch import nn

import ggs
from ggs.dist import lockstep
from ggs.optim.budget import Budget, fit
from ggs.wire import message_size
from tests.models import backward, build


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 kB", Budget(2000.0, "B")),
        ("1.5MB", Budget(1.5e6, "B")),
        (2000, Budget(2000.0, "B")),
        ("700", Budget(700.0, "B")),
        ("0.1 bits", Budget(0.1, "bits")),
        ("1bit", Budget(1.0, "bits")),
        ("0.4 %", Budget(0.4, "%")),
        ("1e-3%", Budget(0.001, "%")),
    ],
)
def test_what_is_read(text: str | float, expected: Budget) -> None:
    assert Budget.parse(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-2 kB", "2 km", "kB", "nan", "1e99 GB", "2 kB/s", True])
def test_what_is_refused(text: Any) -> None:
    with pytest.raises(ggs.errors.ConfigurationError, match=r"budget is .*give bytes per step as"):
        Budget.parse(text)


def test_the_units() -> None:
    assert Budget(2000.0, "B").bytes_per_step(10_000, 60_000.0) == 2000
    assert Budget(0.1, "bits").bytes_per_step(10_000, 60_000.0) == 125
    assert Budget(0.5, "%").bytes_per_step(10_000, 60_000.0) == 300


@pytest.mark.parametrize("numel", [7, 100, 5000])
@pytest.mark.parametrize("values", [None, "fp32", "int4", "sign"])
def test_the_budget_is_kept_and_used(numel: int, values: str | None) -> None:
    def bytes_at(form: str, density: float) -> int:
        return message_size(numel, max(1, round(density * numel)), form)

    for limit in range(bytes_at(values or "sign", 1 / numel), 5 * numel + 60, 1 + numel // 20):
        form, density = fit(limit, bytes_at, numel, values)
        assert form == (values or form)
        assert bytes_at(form, density) <= limit
        if density < 1:  # neither more elements, but for what padding hides, nor all of them
            assert bytes_at(form, min(1.0, density + 8 / numel)) > limit - 16
            assert bytes_at("sign", 1.0) > limit or values is not None


def _sent(worker: Any, options: dict[str, Any]) -> tuple[Any, ...]:
    model = build("plain")
    inner = torch.optim.Adam(model.parameters())
    optimizer = ggs.GGS(inner, model, process_group=worker, **options)
    for step in range(4):
        backward(model, step, 0)
        optimizer.step()
    return optimizer.statistics.bytes_sent, optimizer.values, optimizer.density_at(3)


@pytest.mark.parametrize("options", [{}, {"exchange": "allgather"}, {"exchange": "split"},
                                     {"scope": "tensor"}, {"every": 4}])  # fmt: skip
@pytest.mark.parametrize("size", [2, 4])
def test_a_step_sends_no_more(options: dict[str, Any], size: int) -> None:
    limit = 250 if size == 4 or "every" in options else 110
    results = lockstep.run(size, lambda worker: _sent(worker, {"budget": limit, **options}))
    every = options.get("every", 1)
    assert len({result[1:] for result in results}) == 1
    most = max(result[0] for result in results)
    assert 0.5 * limit * every < most <= limit * every


def test_a_budget_and_a_density_are_one_too_many() -> None:
    model = nn.Linear(4, 4)
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(
        ggs.errors.ConfigurationError, match=r"density is 0\.1 and budget is '2 kB'"
    ):
        ggs.GGS(adam, model, 0.1, budget="2 kB")


def test_a_budget_too_small_for_one_element() -> None:
    model = nn.Linear(4, 4)
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(
        ggs.errors.ConfigurationError, match="budget of 20 B: the smallest exchange"
    ):
        ggs.GGS(adam, model, budget=20)


def test_the_workers_budget_must_be_one() -> None:
    def construct(worker: Any) -> str:
        model = nn.Linear(40, 4)
        adam = torch.optim.Adam(model.parameters())
        try:
            ggs.GGS(adam, model, budget=700 + worker.rank, process_group=worker)
        except ggs.errors.MismatchError as error:
            return str(error)
        return ""

    assert all("budget" in text for text in lockstep.run(2, construct))


def test_the_log_says_what_a_budget_became(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(100, 100)
    with caplog.at_level(logging.INFO, "ggs"):
        optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, budget="0.4 %")
    assert f"density {optimizer.density_at(0):.4g} with values sign" in caplog.text

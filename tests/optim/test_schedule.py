"""Density schedules."""

import pytest

from ggs.errors import ConfigurationError
from ggs.optim.schedule import exponential_warmup, selected_count


def test_falls_exponentially_from_1() -> None:
    schedule = exponential_warmup(0.001, 30)
    assert schedule(0) == 1.0
    assert schedule(10) == pytest.approx(0.1)
    assert schedule(20) == pytest.approx(0.01)
    assert schedule(29) > 0.001
    assert schedule(30) == schedule(10**9) == 0.001


def test_no_warmup_is_constant() -> None:
    assert exponential_warmup(0.5, 0)(0) == 0.5


@pytest.mark.parametrize("density", [0, -0.1, 1.0001, float("inf"), float("nan"), "0.1", None])
def test_density_must_be_a_share(density: object) -> None:
    with pytest.raises(ConfigurationError, match="density is"):
        exponential_warmup(density, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("numel", "density", "count"),
    [(0, 0.5, 0), (1, 1e-9, 1), (1000, 0.001, 1), (61706, 0.001, 62), (10, 1.0, 10), (10, 0.25, 2)],
)
def test_count(numel: int, density: float, count: int) -> None:
    assert selected_count(numel, density) == count

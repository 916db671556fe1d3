"""Density schedules: which share of the update is sent at which step."""

from collections.abc import Callable

from ggs.errors import ConfigurationError

DensitySchedule = Callable[[int], float]


def check_density(density: float, where: str = "density") -> float:
    """Return ``density`` if it lies in (0, 1]; raise ConfigurationError otherwise."""
    if (
        isinstance(density, bool)
        or not isinstance(density, (int, float))
        or not 0.0 < density <= 1.0
    ):
        raise ConfigurationError(
            f"{where} is {density!r}: give the share of elements to send, above 0 and at most 1 "
            "(0.001 sends 0.1 %)"
        )
    return float(density)


def exponential_warmup(density: float, steps: int) -> DensitySchedule:
    """A density that falls exponentially from 1 at step 0 to ``density`` at step ``steps``.

    The idea of raising sparsity gradually is Deep Gradient Compression's (Lin et al., ICLR 2018),
    which does it in four stairs of an epoch each; ours is smooth and may be much shorter.

    Raises ConfigurationError for a density outside (0, 1] or a negative number of steps.
    """
    check_density(density)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise ConfigurationError(
            f"warmup_steps is {steps!r}: give a number of steps, 0 for no warm-up"
        )

    def schedule(step: int) -> float:
        return density if step >= steps else float(density ** (step / steps))

    return schedule


def selected_count(numel: int, density: float) -> int:
    """How many of ``numel`` elements a density means: rounded, but at least one of a non-empty tensor."""
    return min(numel, max(1, round(numel * density))) if numel else 0

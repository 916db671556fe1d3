"""What a worker will send in a step and in a run, from the numbers of elements and workers alone."""

from dataclasses import dataclass

from ggs.exchange.cost import ring_bytes
from ggs.optim.base import DistributedOptimizer
from ggs.optim.budget import Budget
from ggs.optim.error_feedback import DEFAULT_DENSITY, ResidualOptimizer
from ggs.optim.schedule import exponential_warmup, selected_count
from ggs.train.config import TrainConfig

WARMUP_PARTS = 500
"""So many that the densities of a part are close together and its middle is wrong by less than 1e-4; and
so few that it takes a second where 16 workers choose their exchange."""


@dataclass(frozen=True)
class Traffic:
    """What one worker sends in a step that exchanges; local steps send nothing."""

    exchange: str
    elements: int
    """Sparse elements that are selected."""
    bytes_sent: int
    """Headers and the workers' agreement counted."""
    dense_bytes: int
    """What a dense ring all-reduce sends."""

    @property
    def exact(self) -> bool:
        """Whether every worker sends just so much in every step: ranges move with the residuals."""
        return "split" not in self.exchange


@dataclass(frozen=True)
class WholeRun:
    """What one worker sends in all steps, where none is skipped."""

    bytes_sent: int
    dense_bytes: int
    """What dense ring all-reduces send in as many steps."""
    exact: bool


class TrafficForecast:
    """What each of ``workers`` will send.

    Args:
        config: the run.
        optimizer: the run's, in a single process.
        workers: of all tasks.
        local: of each task.
    """

    def __init__(
        self,
        config: TrainConfig,
        optimizer: DistributedOptimizer,
        workers: int,
        local: int,
    ) -> None:
        self._config, self._optimizer = config, optimizer
        self._workers, self._local = workers, config.workers_per_node or local
        self.values, self.density = "fp32", 1.0
        """In which format which share is sent after the density warm-up."""
        if isinstance(optimizer, ResidualOptimizer):
            self.values, self.density = optimizer.values, config.density or DEFAULT_DENSITY
            if config.budget is not None:
                budget = Budget.parse(config.budget)
                sizes = self._workers, self._local
                self.values, self.density = optimizer.fit_budget(budget, config.values, *sizes)
        trained = (p for p in optimizer.model.parameters() if p.requires_grad)
        self._dense = self._ring(sum(p.numel() * p.element_size() for p in trained))
        self._agreement = sum(self._ring(size) for size in optimizer.agreement_bytes)

    def _ring(self, size: int) -> int:
        return int(ring_bytes(size, self._workers))

    def step(self, density: float) -> Traffic:
        """A step that sends ``density`` of the elements, if it selects any at all.

        Raises ConfigurationError for an exchange that is impossible with these workers.
        """
        optimizer = self._optimizer
        if not isinstance(optimizer, ResidualOptimizer):
            shared = self._ring(sum(p.numel() * p.element_size() for _, p in optimizer.shared))
            return Traffic("all-reduce", 0, self._agreement + shared, self._dense)
        counts = [selected_count(numel, density) for _, numel in optimizer.segments]
        name, sent = optimizer.bytes_of_exchange(density, self.values, self._workers, self._local)
        return Traffic(name, sum(counts), sent, self._dense)

    def run(self, steps: int, warmup: int) -> WholeRun:
        """All ``steps``, of which the density warm-up is the first ``warmup``.

        Of a long warm-up one exchange in the middle of each of ``WARMUP_PARTS`` parts stands for all of it.
        """
        every, density = self._config.every, exponential_warmup(self.density, warmup)
        warm = min(steps, warmup) // every  # exchanges, each in the last of its steps
        length = -(-warm // WARMUP_PARTS) | 1  # odd, so that there is one in the middle
        parts = [range(first, min(first + length, warm)) for first in range(0, warm, length)]
        alike = [
            (len(part), self.step(density(part[len(part) // 2] * every + every - 1)))
            for part in parts
        ]
        alike.append((steps // every - warm, self.step(self.density)))
        alike.append(
            (int(steps % every > 0), self.step(density(steps - 1)))
        )  # what is left at the end
        return WholeRun(
            sum(count * exchange.bytes_sent for count, exchange in alike),
            steps * self._dense,
            length == 1 and all(exchange.exact for count, exchange in alike if count),
        )

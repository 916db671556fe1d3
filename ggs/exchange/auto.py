"""All-gather or split, whichever the forecast finds cheaper.

Both are the same algorithm, so the choice changes what a step costs and not what is trained. Hierarchical
is another one: there is a hint where it would be cheaper, no more. The choice depends on the numbers of
elements and workers alone, never on a clock or the network at hand, so a run can be repeated. All-gather
delivers more elements in a step than split does, so it stays unless split is cheaper by a margin, on a
network faster than most: a small model is never made slower.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from ggs.dist.collectives import Collectives
from ggs.exchange import forecast
from ggs.exchange.allgather import AllGather
from ggs.exchange.base import Exchange, ExchangeTask, Update
from ggs.exchange.split import Split
from ggs.text import readable_bytes

_log = logging.getLogger("ggs")


class Auto(Exchange):
    """All-gather or split, chosen for each number of selected elements; both have the same residual.

    Args:
        sharing: workers on this node.
        hints: whether to tell, once, where hierarchical would be cheaper.
    """

    def __init__(
        self, collectives: Collectives, task: ExchangeTask, sharing: int = 1, hints: bool = False
    ) -> None:
        super().__init__(collectives, task)
        self._sharing = sharing
        self._hints = hints and collectives.rank == 0
        self._exchanges = {
            "allgather": AllGather(collectives, task),
            "split": Split(collectives, task),
        }
        self.state = self._exchanges["split"].state
        self._choices: dict[int, str] = {}
        self._last = ""
        self._last_count = -1

    def load(self, state: dict[str, Any]) -> None:
        """See ``Exchange.load``."""
        self._exchanges["split"].load(state)

    def run(self, counts: Sequence[int], step: int) -> Iterator[Update]:
        """See ``Exchange.run``."""
        count = sum(counts)
        exchange = self._exchanges[self._choose(count)]
        if self._hints and count == self._last_count:  # after the warm-up, whose costs soon pass
            self._hints = False
            if text := forecast.hint(*self._sizes(count)):
                _log.info("%s", text)
        self._last_count = count
        yield from exchange.run(counts, step)
        self.selected = exchange.selected

    def _sizes(self, count: int) -> tuple[int, int, int, int, str, str]:
        task = self.task
        device = task.residual.device.type
        return task.numel, count, self.collectives.size, self._sharing, task.values_format, device

    def _choose(self, count: int) -> str:
        if count not in self._choices:
            name, cost = forecast.choose(*self._sizes(count))
            self._choices[count] = name
            if name != self._last and self.collectives.rank == 0:
                _log.info(
                    "exchange: %s, for %s of %s elements on %d workers; sends %s a worker and exchange now",
                    name, f"{count:,}", f"{self.task.numel:,}", self.collectives.size,
                    readable_bytes(cost.bytes_sent),
                )  # fmt: skip
                self._last = name
        return self._choices[count]

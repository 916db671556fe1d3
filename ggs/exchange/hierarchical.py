"""Between nodes: a node is one worker, and each of its processes exchanges its own share of the model.

The gradients are averaged inside the node before the optimizer sees them, so its processes make the
same update. Process l of a node then owns share l of the residual: it selects there, exchanges with
process l of every other node by any flat exchange, and passes what arrived on to the node's others.
Each process sends 1 / L of what a worker per node would, and selects from 1 / L of the elements.

The residual outside a process's own share is zero: it is another's. The mean over the *nodes* of the
residuals is what the weights still lack, so a residual counts L times in the mean over all workers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ggs.dist.collectives import Collectives
from ggs.errors import ConfigurationError
from ggs.exchange.base import Exchange, ExchangeTask, Update, cut


def averaging_workers(name: str, size: int, local: int | None) -> int:
    """How many workers average their gradients first: ``local`` in "hierarchical", else 1, none.

    Args:
        size: workers in all.
        local: workers on each node; None if unknown.

    Raises ConfigurationError for "hierarchical" where ``local`` is unknown or does not divide ``size``.
    """
    if name != "hierarchical" or size == 1:
        return 1
    if local is None:
        raise ConfigurationError(
            "exchange is 'hierarchical' but how the workers lie on nodes is unknown: LOCAL_WORLD_SIZE is "
            "not set, or process_group has not equally many of each node: give workers_per_node"
        )
    if size % local:
        raise ConfigurationError(
            f"exchange is 'hierarchical' but {local} workers per node do not divide the {size} "
            "workers: start equally many on every node, or choose 'split'"
        )
    return local


class Hierarchical(Exchange):
    """A flat exchange per share between the nodes, and an all-gather inside each.

    Args:
        collectives: all workers.
        node: the workers of this node.
        peers: the workers with this rank inside their node.
        flat: makes the exchange between the nodes.
    """

    def __init__(
        self,
        collectives: Collectives,
        node: Collectives,
        peers: Collectives,
        task: ExchangeTask,
        flat: Callable[[Collectives, ExchangeTask], Exchange],
    ) -> None:
        super().__init__(collectives, task)
        self.sources = peers.size
        self.node = node
        self.weight = node.size
        shares = [task.numel * rank // node.size for rank in range(node.size + 1)]
        self._start, self._stop = shares[node.rank], shares[node.rank + 1]
        self._starts = shares[:-1]
        offsets, _ = cut(task.offsets, [0] * (len(task.offsets) - 1), self._start, self._stop)
        share = replace(
            task,
            residual=task.residual[self._start : self._stop],
            offsets=offsets,
            on_selected=lambda indices, values: task.on_selected(indices + self._start, values),
        )
        self._flat = flat(peers, share)
        self.state = self._flat.state

    def forget_others(self) -> None:
        """See ``Exchange.forget_others``."""
        self.task.residual[: self._start].zero_()
        self.task.residual[self._stop :].zero_()

    def load(self, state: dict[str, Any]) -> None:
        """See ``Exchange.load``."""
        self._flat.load(state)

    def run(self, counts: Sequence[int], step: int) -> Iterator[Update]:
        """See ``Exchange.run``."""
        self.forget_others()
        _, shares = cut(self.task.offsets, counts, self._start, self._stop)
        updates = self._flat.run(shares, step)
        while True:
            passed_on = self._pass_on(next(updates, None))
            if passed_on is None:
                break
            yield from passed_on
        self.selected = self._flat.selected

    def _pass_on(self, update: Update | None) -> list[Update] | None:
        """An update of our share becomes one of each share of the node; None when no process has one."""
        assert self.node is not None
        residual = self.task.residual
        values = residual[:0] if update is None else update.values.to(residual.dtype)
        indices = None if update is None else update.indices
        if indices is None:
            indices = torch.arange(len(values), device=residual.device)
        length = -1 if update is None else len(values)
        lengths = torch.tensor([length], dtype=torch.int64, device=residual.device)
        sizes = self.node.all_gather(lengths).view(-1).tolist()
        longest = max(sizes)
        if longest <= 0:
            return None if longest else []
        longest += longest % 2  # so that every row begins at a multiple of 8 bytes
        message = torch.cat([_padded(indices, longest), _padded(values, longest)])
        passed_on = []
        rows = self.node.all_gather(message)
        for start, size, row in zip(self._starts, sizes, rows, strict=True):
            arrived = row[: longest * 8].view(torch.int64)[: max(size, 0)]
            part = row[longest * 8 :].view(residual.dtype)[: max(size, 0)]
            passed_on.append(Update(arrived + start, part))
        return passed_on


def _padded(values: Tensor, length: int) -> Tensor:
    """(length,) with zeros at the end, as bytes."""
    full = values.new_zeros(length)
    full[: len(values)] = values
    return full.view(torch.uint8)

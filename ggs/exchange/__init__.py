"""How the workers' selected elements reach each other.

Every exchange selects from one worker's residual, sends, and yields what to add to the weights in the
same order and with the same bits on every rank, so that replicas stay bit-identical. All of them keep
the mean of the residuals plus what arrived in the weights equal to the mean of all updates.

================  =====================================================================================
``allgather``     every selection to every worker; the bytes grow with their number
``split``         by index range, with a second selection by the range's owner; flat in their number
``hierarchical``  gradients averaged inside a node; between nodes, each process its share of the model
``auto``          whichever the cost model finds cheapest
================  =====================================================================================
"""

import logging
import os
from typing import Literal, get_args

import torch

from ggs.collectives import Collectives
from ggs.errors import ConfigurationError
from ggs.exchange.allgather import AllGather
from ggs.exchange.auto import Auto, prefers_hierarchical
from ggs.exchange.base import Exchange, Task, Update
from ggs.exchange.hierarchical import Hierarchical
from ggs.exchange.split import Split
from ggs.support import check_whole

ExchangeName = Literal["auto", "allgather", "split", "hierarchical"]

__all__ = ["Exchange", "ExchangeName", "Task", "Update", "check", "create"]


def check(name: str, workers_per_node: int | None) -> None:
    """Raise ConfigurationError for an unknown exchange or an impossible number of workers."""
    if name not in get_args(ExchangeName):
        raise ConfigurationError(
            f"exchange is {name!r}: choose one of {', '.join(get_args(ExchangeName))}"
        )
    if workers_per_node is not None:
        check_whole("workers_per_node", workers_per_node, least=1)


def create(
    name: ExchangeName,
    collectives: Collectives,
    task: Task,
    count: int,
    workers_per_node: int | None = None,
) -> Exchange:
    """The exchange called ``name``; a single worker needs none and gets the simplest. A collective.

    Args:
        count: how many elements are selected in a step, where "auto" chooses once for all.
        workers_per_node: None for what the launcher says in LOCAL_WORLD_SIZE. Ranks are numbered node
            by node.

    Raises ConfigurationError for "hierarchical" where that number is unknown or does not divide that of
    the workers.
    """
    if collectives.size == 1:
        return AllGather(collectives, task)
    local = node_size(workers_per_node)
    if name == "hierarchical":
        if local is None:
            raise ConfigurationError(
                "exchange is 'hierarchical' but LOCAL_WORLD_SIZE is not set: give workers_per_node"
            )
        if collectives.size % local:
            raise ConfigurationError(
                f"exchange is 'hierarchical' but {local} workers per node do not divide the "
                f"{collectives.size} workers: start equally many on every node, or choose 'split'"
            )
        return _hierarchical(collectives, task, local)
    if name == "allgather":
        return AllGather(collectives, task)
    if name == "split":
        return Split(collectives, task)
    local = _common(collectives, local, task)
    if (
        1 < local < collectives.size
        and task.residual.device.type == "cuda"
        and prefers_hierarchical(task.numel, count, collectives.size, local, task.values_format)
    ):
        return _hierarchical(collectives, task, local)
    return Auto(collectives, task, local)


def _common(collectives: Collectives, local: int | None, task: Task) -> int:
    """The number of workers on every node; 1 where it is unknown or differs. A collective."""
    own = torch.tensor([local or 1], dtype=torch.int64, device=task.residual.device)
    sizes = set(collectives.all_gather(own).view(-1).tolist())
    size = sizes.pop()
    return 1 if sizes or collectives.size % size else int(size)


def _hierarchical(collectives: Collectives, task: Task, local: int) -> Exchange:
    if local == 1:
        return Auto(collectives, task)
    first = collectives.rank // local * local
    node = collectives.subgroup(range(first, first + local), counted=False)
    across = range(collectives.rank - first, collectives.size, local)
    peers = collectives.subgroup(across, counted=True)
    if collectives.rank == 0:
        nodes = collectives.size // local
        logging.getLogger("ggs").info(
            "exchange: hierarchical, %d nodes of %d workers", nodes, local
        )
    return Hierarchical(collectives, node, peers, task, lambda c, t: Auto(c, t, local))


def node_size(workers_per_node: int | None) -> int | None:
    """Workers on each node: as given, or as the launcher says in LOCAL_WORLD_SIZE; None if neither."""
    if workers_per_node is not None:
        return workers_per_node
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdecimal() and int(text) > 0 else None

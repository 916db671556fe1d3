"""The exchange of a name."""

import logging
from typing import Literal, get_args

import torch

from ggs.checks import check_whole
from ggs.dist.collectives import Collectives, stated_by_launcher
from ggs.errors import ConfigurationError
from ggs.exchange.allgather import AllGather
from ggs.exchange.auto import Auto
from ggs.exchange.base import Exchange, ExchangeTask
from ggs.exchange.hierarchical import Hierarchical, averaging_workers
from ggs.exchange.split import Split

ExchangeName = Literal["auto", "allgather", "split", "hierarchical"]


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
    task: ExchangeTask,
    workers_per_node: int | None = None,
) -> Exchange:
    """The exchange called ``name``; a single worker needs none and gets the simplest. A collective.

    Args:
        workers_per_node: None for what the launcher says in LOCAL_WORLD_SIZE. Ranks are numbered node
            by node.

    Raises ConfigurationError for "hierarchical" where that number is unknown or does not divide that of
    the workers.
    """
    if collectives.size == 1:
        return AllGather(collectives, task)
    local = _node_size(workers_per_node, collectives)
    if (averaging := averaging_workers(name, collectives.size, local)) > 1:
        return _hierarchical(collectives, task, averaging)
    if name == "allgather":
        return AllGather(collectives, task)
    if name == "split":
        return Split(collectives, task)
    return Auto(collectives, task, _common(collectives, local, task), hints=name == "auto")


def _common(collectives: Collectives, local: int | None, task: ExchangeTask) -> int:
    """The number of workers on every node; 1 where it is unknown or differs. A collective."""
    here = torch.tensor([local or 1], dtype=torch.int64, device=task.residual.device)
    sizes = set(collectives.all_gather(here).view(-1).tolist())
    size = sizes.pop()
    return 1 if sizes or collectives.size % size else int(size)


def _hierarchical(collectives: Collectives, task: ExchangeTask, local: int) -> Exchange:
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


def stated_node_size(workers_per_node: int | None) -> int | None:
    """Workers on each node: as given, or as the launcher says in LOCAL_WORLD_SIZE; None if neither."""
    if workers_per_node is not None:
        return workers_per_node
    return stated_by_launcher("LOCAL_WORLD_SIZE")


def _node_size(workers_per_node: int | None, collectives: Collectives) -> int | None:
    """The same of the workers of ``collectives``, for which the launcher's number need not hold."""
    stated = stated_node_size(workers_per_node)
    if stated is None or workers_per_node is not None:
        return stated
    return collectives.members_per_node(stated)

"""How the workers' selected elements reach each other.

Every exchange selects from one worker's residual, sends, and yields what to add to the weights in the
same order and with the same bits on every rank, so that replicas stay bit-identical. All of them keep
the mean of the residuals plus what arrived in the weights equal to the mean of all updates.
"""

from typing import Literal, get_args

from ggs.collectives import Collectives
from ggs.errors import ConfigurationError
from ggs.exchange.allgather import AllGather
from ggs.exchange.base import Exchange, Task, Update
from ggs.exchange.split import Split

ExchangeName = Literal["allgather", "split"]

__all__ = ["AllGather", "Exchange", "ExchangeName", "Split", "Task", "Update", "check", "create"]


def check(name: str) -> None:
    """Raise ConfigurationError for an unknown exchange."""
    if name not in get_args(ExchangeName):
        raise ConfigurationError(
            f"exchange is {name!r}: choose one of {', '.join(get_args(ExchangeName))}"
        )


def create(name: ExchangeName, collectives: Collectives, task: Task) -> Exchange:
    """The exchange called ``name``; a single worker needs none and gets the simplest."""
    if name == "split" and collectives.size > 1:
        return Split(collectives, task)
    return AllGather(collectives, task)

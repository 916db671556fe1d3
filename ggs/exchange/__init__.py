"""How the workers' selected elements reach each other.

Every exchange selects from one worker's residual, sends, and yields what to add to the weights in the
same order and with the same bits on every rank, so that replicas stay bit-identical. All of them keep
the mean of the residuals plus what arrived in the weights equal to the mean of all updates.
"""

from ggs.exchange.allgather import AllGather
from ggs.exchange.base import Exchange, Task, Update

__all__ = ["AllGather", "Exchange", "Task", "Update"]

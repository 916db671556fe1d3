"""What a cluster does to a worker in the middle of a step, told in one line: lost peers, no memory, dead
decoding processes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ggs.dist.process_group import is_communication_error
from ggs.errors import DataError, GGSError, OutOfMemoryError, RendezvousError

_PLACE = re.compile(r"\[[^\]]*/gloo/[^\]]*\]\s*")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` was raised because memory is short."""
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "DefaultCPUAllocator" in str(error)


@contextmanager
def told_in_one_line(collective_timeout: float) -> Iterator[None]:
    """Raise RendezvousError for what torch.distributed raises when other workers go away or keep silent,
    OutOfMemoryError for what torch, numpy and Python raise when memory is short, and DataError for what a
    data loader raises when a process of its own dies: wherever this one is when the signal comes.

    Args:
        collective_timeout: seconds, for the message.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, GGSError):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        if is_out_of_memory(error):
            raise OutOfMemoryError(
                f"out of memory ({reason[:300]}): give a smaller --batch-size, with --accumulate for the "
                "same number of images per step"
            ) from error
        if "DataLoader" in reason:
            raise DataError(
                f"data_workers: a process that decodes images died or hangs ({reason[:300]}); if memory or "
                "/dev/shm is full, give fewer --data-workers, or raise extraContainerOptions.shmMB"
            ) from error
        if not is_communication_error(error):
            raise
        reason = _PLACE.sub("", reason)[:300]
        if "imed out" in reason:
            raise RendezvousError(
                f"the other workers did not answer within {collective_timeout:g} s "
                f"(collective_timeout): one of them is stopped, stuck or unreachable ({reason})"
            ) from error
        raise RendezvousError(f"the connection to another worker was lost: {reason}") from error

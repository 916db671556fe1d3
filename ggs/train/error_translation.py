"""What a cluster does to a worker in the middle of a step, as an error of one line: lost peers, no memory,
dead decoding processes."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ggs.dist.process_group import is_communication_error
from ggs.errors import DataError, GGSError, OutOfMemoryError, RendezvousError
from ggs.text import one_line, shorten

_ADDRESS = re.compile(r"\[[^\]]*/gloo/[^\]]*\]\s*")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` was raised because memory is short."""
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "DefaultCPUAllocator" in str(error)


@contextmanager
def cluster_errors(collective_timeout: float) -> Iterator[None]:
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
        text = " ".join(str(error).split())
        reason = one_line(error)
        if is_out_of_memory(error):
            raise OutOfMemoryError(
                f"out of memory ({reason}): give a smaller --batch-size, with --accumulate for the "
                "same number of images per step"
            ) from error
        if "DataLoader" in text:
            what = "died or hangs"
            if "Traceback" in text:  # of the other process, whose last line tells what happened
                what, reason = "failed", shorten(str(error).rstrip().splitlines()[-1], 200)
            raise DataError(
                f"data_workers: a process that decodes images {what} ({reason}); if memory or /dev/shm is "
                "full, give fewer --data-workers, or raise extraContainerOptions.shmMB"
            ) from error
        if not is_communication_error(error):
            raise
        reason = shorten(_ADDRESS.sub("", text), 300)
        if "imed out" in text:
            raise RendezvousError(
                f"the other workers did not answer within {collective_timeout:g} s "
                f"(collective_timeout): one of them is stopped, stuck or unreachable ({reason})"
            ) from error
        raise RendezvousError(f"the connection to another worker was lost: {reason}") from error

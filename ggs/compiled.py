"""Kernels compiled by numba, and the threads that run them.

Kernels are serial and release Python's lock; a few Python threads run one each over their own
range. This keeps three things simple that numba's own parallel loops do not: results that do not
depend on the number of threads, calls from several threads at once, and forked data loaders.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import torch
from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

_pool: ThreadPoolExecutor | None = None


def compiled(function: F) -> F:
    """Compiles `function` at its first call, and keeps the code on disk where that is possible."""
    try:
        return cast(F, njit(nogil=True, error_model="numpy", cache=True)(function))
    except RuntimeError:
        # numba found neither the package's directory nor a home directory to write to. A shared
        # temporary directory would let others plant code, so compile once per process instead.
        return cast(F, njit(nogil=True, error_model="numpy")(function))


def threads_for(work: int, grain: int) -> int:
    """How many threads `work` items deserve if a thread should have at least `grain` of them."""
    return max(1, min(torch.get_num_threads(), work // grain))


def run_threads(kernel: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Results of `kernel(*call)` for each of `calls`, all at once; the last in this thread."""
    global _pool
    if len(calls) <= 1:
        return [kernel(*call) for call in calls]
    if _pool is None:
        _pool = ThreadPoolExecutor(max(64, os.cpu_count() or 1), thread_name_prefix="ggs")
    futures = [_pool.submit(kernel, *call) for call in calls[:-1]]
    last = kernel(*calls[-1])
    return [*(future.result() for future in futures), last]


def _forget_pool() -> None:
    """A forked child has this module's pool, but none of its threads."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)

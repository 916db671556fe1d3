"""Kernels compiled by numba, and the threads that run them.

Kernels are serial and release Python's lock; a few threads run one each over their own range. This
keeps three things simple that numba's own parallel loops do not: results that do not depend on the
number of threads, calls from several threads at once, and forked data loaders.

The threads are those of torch's own operators where it uses OpenMP. Between two operators these spin
on their cores for a while, and any other thread would have to share a core with them: a selection
right after an optimizer's step took half as long again.
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _openmp_region() -> Callable[..., Any] | None:
    """`GOMP_parallel(body, data, threads, flags)` of the OpenMP library that torch itself uses."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        region = ctypes.CDLL(str(library)).GOMP_parallel  # found through the library's own imports
    except (OSError, AttributeError):
        return None
    region.argtypes = [_BODY, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    region.restype = None
    return cast(Callable[..., Any], region)


_region = _openmp_region()
_pool: ThreadPoolExecutor | None = None
_kernels: list[Any] = []


def compiled(function: F) -> F:
    """Compiles `function` at its first call, and keeps the code on disk where that is possible."""
    try:
        kernel = njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:
        # numba found neither the package's directory nor a home directory to write to. A shared
        # temporary directory would let others plant code, so compile once per process instead.
        kernel = njit(nogil=True, error_model="numpy")(function)
    _kernels.append(kernel)
    return cast(F, kernel)


def compiled_here() -> int:
    """How many kernels this process has compiled, and not read from disk."""
    read = sum(sum(kernel.stats.cache_hits.values()) for kernel in _kernels)
    return sum(len(kernel.signatures) for kernel in _kernels) - read


def threads_for(work: int, grain: int) -> int:
    """How many threads `work` items deserve if a thread should have at least `grain` of them."""
    return max(1, min(torch.get_num_threads(), work // grain))


def run_threads(kernel: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Results of `kernel(*call)` for each of `calls`, all at once."""
    if len(calls) <= 1:
        return [kernel(*call) for call in calls]
    if _region is None:
        return _run_in_pool(kernel, calls)
    results: dict[int, Any] = {}
    errors: list[BaseException] = []
    numbers = iter(range(len(calls)))  # OpenMP may start fewer threads than asked

    def share() -> Iterator[None]:
        try:
            yield
            for i in numbers:
                results[i] = kernel(*calls[i])
        except BaseException as error:  # ctypes would only print it
            errors.append(error)

    # A signal's handler may raise at a function's first instruction, which no `try` of its own holds.
    # These have begun already, and nothing but C lies between them and the thread.
    shares = [share() for _ in calls]
    for begun in shares:
        next(begun)
    _region(_BODY(partial(next, map(next, shares))), None, len(calls), 0)
    if errors:
        raise errors[0]
    return [results[i] for i in range(len(calls))]


def _run_in_pool(kernel: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max(64, os.cpu_count() or 1), thread_name_prefix="ggs")
    futures = [_pool.submit(kernel, *call) for call in calls[:-1]]
    last = kernel(*calls[-1])
    return [*(future.result() for future in futures), last]


def _forget_threads() -> None:
    """A forked child has neither the pool's threads nor, where it is GNU's, a working OpenMP."""
    global _pool, _region
    _pool = _region = None


os.register_at_fork(after_in_child=_forget_threads)

"""Compiles the kernels of selection and coding before a run's first step.

Otherwise every worker of a first run would compile all of them in its first steps: as often as there are
workers, all at once, and in the run's measured times.
"""

import time

import torch

from ggs.select import Selector
from ggs.wire import decode, encode

_NUMEL = 4096


def compile_kernels(values_format: str) -> float | None:
    """Select, encode and decode on the CPU, in all the ways that a run may.

    Returns the seconds it took, None where nothing had to be compiled.
    """
    from ggs.compiled import compiled_here  # numba takes half a second to import

    start, before = time.monotonic(), compiled_here()
    dtype = torch.float64 if values_format == "fp64" else torch.float32
    numbers = torch.linspace(-1, 1, _NUMEL, dtype=dtype)
    tied = torch.ones_like(numbers)  # which no threshold parts
    for residual in (numbers, tied):
        selector = Selector(_NUMEL)
        for count in (4, _NUMEL // 2):
            selector.select_(residual.clone(), count)  # by a sample, the next by a prediction
            indices, values = selector.select_(residual.clone(), count)
            message, _ = encode(indices, values, _NUMEL, values_format)
            decode(message, _NUMEL, count, values_format)
    return time.monotonic() - start if compiled_here() > before else None

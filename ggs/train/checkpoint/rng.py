"""The state of every random number generator that a worker's code may draw from."""

import random
from typing import Any

import numpy as np
import torch

from ggs.errors import CheckpointError


def get_state(device: torch.device) -> dict[str, Any]:
    """The generators of torch (CPU and this worker's GPU), Python and numpy."""
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [torch.from_numpy(np.asarray(keys, np.int64)), position, has_gauss, gauss],
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_state(state: dict[str, Any], device: torch.device) -> None:
    """Take back what ``get_state`` gave; a GPU's state only where it was and is one.

    Raises CheckpointError.
    """
    try:
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])
        keys, position, has_gauss, gauss = state["numpy"]
        words = keys.numpy().astype(np.uint32)
        if not 0 <= int(position) <= len(words):  # numpy would read beyond its end
            raise ValueError(f"position {position} is not in the state")
        np.random.set_state(("MT19937", words, position, has_gauss, gauss))
        if device.type == "cuda" and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], device)
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RuntimeError,
    ) as error:
        raise CheckpointError(f"the state of the random numbers is damaged: {error}") from None

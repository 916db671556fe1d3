"""The methods of the language study, by name: each an optimizer over several workers, built of a Setting."""

from collections.abc import Callable
from typing import Any

import torch
from language_settings import Setting
from rivals.averaging import PeriodicAveraging
from rivals.demo import DeMo
from rivals.onebit_adam import OneBitAdam
from rivals.powersgd import PowerSGD
from rivals.sparseloco import SparseLoCo
from torch import nn

import ggs
from ggs.dist.lockstep import Worker
from ggs.optim.base import DistributedOptimizer
from ggs.optim.baselines import GradientSparsification

Build = Callable[..., DistributedOptimizer]


def create(
    setting: Setting, optimizer: torch.optim.Optimizer, model: nn.Module, worker: Worker
) -> DistributedOptimizer:
    """The method that is called ``setting.method``, around ``optimizer``. Raises KeyError for another."""
    build, names = _METHODS[setting.method]
    settings: dict[str, Any] = {name: getattr(setting, name) for name in names}
    if setting.every != 1:
        settings["every"] = setting.every
    return build(optimizer, model, **settings, **setting.options, process_group=worker)


def _pinned(method: Build) -> Build:
    """The exchange does not depend on the density: every worker sends to all others."""

    def build(*arguments: Any, **settings: Any) -> DistributedOptimizer:
        return method(*arguments, **{"exchange": "allgather", **settings})

    return build


_SPARSE = ("density", "values", "warmup_steps")
_METHODS: dict[str, tuple[Build, tuple[str, ...]]] = {
    "dense": (ggs.Dense, ()),
    "ggs": (_pinned(ggs.GGS), _SPARSE),
    "gs": (_pinned(GradientSparsification), _SPARSE),
    "powersgd": (PowerSGD, ("warmup_steps",)),
    "sparseloco": (SparseLoCo, _SPARSE),
    "demo": (DeMo, ("density", "values")),
    "onebit_adam": (OneBitAdam, ("warmup_steps",)),
    "averaging": (PeriodicAveraging, ()),
}
METHODS = tuple(_METHODS)

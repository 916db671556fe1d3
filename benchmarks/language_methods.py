"""The methods of the language study, by name: each an optimizer over several workers, built of a Setting."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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
from ggs.errors import ConfigurationError
from ggs.optim.base import DistributedOptimizer
from ggs.optim.baselines import GradientSparsification


def create(
    setting: Setting, optimizer: torch.optim.Optimizer, model: nn.Module, worker: Worker
) -> DistributedOptimizer:
    """The method that is called ``setting.method``, around ``optimizer``. Raises KeyError for another."""
    method = _METHODS[setting.method]
    settings = {name: getattr(setting, name) for name in method.settings}
    if setting.every != 1 and "every" not in method.settings:
        raise ConfigurationError(
            f"every is {setting.every}: {setting.method} exchanges in every step, set it to 1"
        )
    chosen = {**method.pinned, **settings, **setting.options}
    return method.build(optimizer, model, **chosen, process_group=worker)


class _Method(NamedTuple):
    build: Callable[..., DistributedOptimizer]
    settings: tuple[str, ...] = ()
    """Fields of ``Setting`` that are arguments of ``build``."""
    pinned: Mapping[str, Any] = {}
    """Its other arguments, so that no default of the library changes what a run means."""


_SPARSE = ("density", "values", "warmup_steps")
_PINNED = {"exchange": "allgather", "scope": "global", "dense_below": 0}
_METHODS = {
    "dense": _Method(ggs.Dense),
    "ggs": _Method(ggs.GGS, (*_SPARSE, "every"), {**_PINNED, "momentum_follows_density": False}),
    "gs": _Method(GradientSparsification, _SPARSE, _PINNED),
    "powersgd": _Method(PowerSGD, ("warmup_steps",)),
    "sparseloco": _Method(SparseLoCo, (*_SPARSE, "every")),
    "demo": _Method(DeMo, ("density", "values")),
    "onebit_adam": _Method(OneBitAdam, ("warmup_steps",)),
    "averaging": _Method(PeriodicAveraging, ("every",)),
}

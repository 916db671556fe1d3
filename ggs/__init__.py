"""General Gradient Sparsification: send 0.1 % of every step, with any ``torch.optim`` optimizer.

    optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, density=0.001)

The public names are loaded on first use, so that ``ggs.pai`` and the command lines start without
importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ggs._version import __version__ as __version__

if TYPE_CHECKING:
    from ggs.optim.baselines import DeepGradientCompression as DeepGradientCompression
    from ggs.optim.baselines import GradientSparsification as GradientSparsification
    from ggs.optim.baselines import staircase_warmup as staircase_warmup
    from ggs.optim.batchnorm import BatchNormMode as BatchNormMode
    from ggs.optim.dense import Dense as Dense
    from ggs.optim.ggs import GGS as GGS
    from ggs.optim.scaler import GradScaler as GradScaler
    from ggs.optim.schedule import exponential_warmup as exponential_warmup
    from ggs.optim.statistics import StepStatistics as StepStatistics

_HOME = {
    "GGS": "ggs.optim.ggs",
    "BatchNormMode": "ggs.optim.batchnorm",
    "DeepGradientCompression": "ggs.optim.baselines",
    "Dense": "ggs.optim.dense",
    "GradScaler": "ggs.optim.scaler",
    "GradientSparsification": "ggs.optim.baselines",
    "StepStatistics": "ggs.optim.statistics",
    "exponential_warmup": "ggs.optim.schedule",
    "staircase_warmup": "ggs.optim.baselines",
}

__all__ = [
    "GGS",
    "BatchNormMode",
    "DeepGradientCompression",
    "Dense",
    "GradScaler",
    "GradientSparsification",
    "StepStatistics",
    "exponential_warmup",
    "staircase_warmup",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'ggs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

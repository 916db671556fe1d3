"""General Gradient Sparsification: send 0.1 % of every step, with any ``torch.optim`` optimizer.

    optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, density=0.001)

The public names are loaded on first use, so that ``ggs.pai`` and the command lines start without
importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggs.baselines import DeepGradientCompression as DeepGradientCompression
    from ggs.baselines import GradientSparsification as GradientSparsification
    from ggs.baselines import staircase_warmup as staircase_warmup
    from ggs.batchnorm import BatchNormMode as BatchNormMode
    from ggs.dense import Dense as Dense
    from ggs.optimizer import GGS as GGS
    from ggs.scaler import GradScaler as GradScaler
    from ggs.schedule import exponential_warmup as exponential_warmup
    from ggs.statistics import StepStatistics as StepStatistics

_HOME = {
    "GGS": "ggs.optimizer",
    "BatchNormMode": "ggs.batchnorm",
    "DeepGradientCompression": "ggs.baselines",
    "Dense": "ggs.dense",
    "GradScaler": "ggs.scaler",
    "GradientSparsification": "ggs.baselines",
    "StepStatistics": "ggs.statistics",
    "exponential_warmup": "ggs.schedule",
    "staircase_warmup": "ggs.baselines",
}

__version__ = "0.1.0"
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

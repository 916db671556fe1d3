"""What needs more than torch, numpy and numba, and which extra of the distribution brings it."""

from importlib import import_module
from types import ModuleType

from ggs.errors import ConfigurationError


def require(module: str, extra: str) -> ModuleType:
    """Import ``module``, which ``extra`` brings. Raises ConfigurationError where it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise ConfigurationError(
            f"{module} is not installed: pip install 'gradient-sparsification[{extra}]'"
        ) from None

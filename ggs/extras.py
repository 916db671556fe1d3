"""What needs more than torch, numpy and numba, and which extra of the distribution brings it.

``import ggs`` and the optimizers need no extra. Whatever else is missing is told in one line.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from ggs.errors import ConfigurationError

DISTRIBUTION = "gradient-sparsification"
"""The name on PyPI, where ``ggs`` and ``pai`` are other people's."""

MODULES = {
    "train": (
        "annotated_types",
        "PIL",
        "psutil",
        "pydantic",
        "rich",
        "safetensors",
        "torchvision",
        "typer",
        "yaml",
    ),
    "pai": (
        "docker",
        "httpx",
        "psutil",
        "pydantic",
        "pydantic_core",
        "requests",
        "rich",
        "typer",
        "yaml",
    ),
    "report": ("jinja2", "markupsafe", "vl_convert"),
    "tensorboard": ("tensorboard",),
}
"""By extra, the modules that ``ggs`` imports of it. pyproject.toml names the distributions."""


def require(module: str, extra: str) -> ModuleType:
    """Import ``module``, which ``extra`` brings. Raises ConfigurationError where it is not installed."""
    with extras_named(extra):
        return import_module(module)


@contextmanager
def extras_named(preferred: str = "train") -> Iterator[None]:
    """Inside, a module of an extra that is not installed raises ConfigurationError, which names the extra.

    Args:
        preferred: the extra to name where several bring the module.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = next((e for e in (preferred, *MODULES) if module in MODULES[e]), None)
        if extra is None:
            raise
        raise ConfigurationError(
            f"{module} is not installed: pip install '{DISTRIBUTION}[{extra}]'"
        ) from None

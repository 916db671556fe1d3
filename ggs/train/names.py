"""Names of optimizers and models, looked up in the installed torch and torchvision without importing them.

Those imports take seconds, on a busy machine half a minute: too long to wait for the news of a slip of
the pen. Whether a name that is there can be used is checked after the imports.
"""

import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from ggs.errors import ConfigurationError
from ggs.train.arguments import suggestion

OWN_MODELS = ("lenet5", "cifarnet")
"""Models of ``ggs`` that torchvision has no namesake of."""
REFUSED_OPTIMIZERS = frozenset({"asgd", "lbfgs", "sparseadam"})
"""Of torch.optim, but of no use here: ``ggs.optim.support`` says why to who asks for one."""
_OPTIMIZER = re.compile(r"^class ([A-Z]\w*)\((?:Optimizer|Adam)\)", re.MULTILINE)
_MODEL = re.compile(r"^@register_model\(.*?^def (\w+)\(", re.MULTILINE | re.DOTALL)


def check_names(optimizer: str, model: str) -> None:
    """Raise ConfigurationError for names that cannot be right."""
    if optimizers := known_optimizers():
        require_optimizer(optimizer, optimizers)
    if ":" not in model and (models := known_models()):
        require_model(model, models)


def known_optimizers() -> set[str]:
    """The optimizers of torch.optim in lower case; empty where that cannot be read."""
    return {name.lower() for name in _defined("torch", "optim", _OPTIMIZER)}


def known_models() -> set[str]:
    """The models of ggs and torchvision; empty where those cannot be read."""
    names = _defined("torchvision", "models", _MODEL)
    return names and {*names, *OWN_MODELS}


def require_optimizer(name: str, known: Iterable[str]) -> None:
    """Raise ConfigurationError unless ``name`` is amsgrad or one of the ``known``, in lower case."""
    known = {*known, "amsgrad"}
    names = sorted(known - REFUSED_OPTIMIZERS)
    if name.lower() not in known:
        raise ConfigurationError(
            f"optimizer: {name} is unknown{suggestion(name.lower(), names)}; give one of {', '.join(names)}"
        )


def require_model(name: str, known: Iterable[str]) -> None:
    """Raise ConfigurationError unless ``name`` is one of the ``known``."""
    names = sorted(known)
    if name not in names:
        near = suggestion(name, names)
        raise ConfigurationError(
            f"model: {name} is unknown{near or '; give lenet5, cifarnet, a classifier of '}"
            f"{'' if near else 'torchvision.models such as resnet18, or package.module:function'}"
        )


def _defined(package: str, folder: str, pattern: re.Pattern[str]) -> set[str]:
    """What the modules in a folder of a package define; empty where there are no sources to read."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return set()
    paths = Path(spec.submodule_search_locations[0], folder).glob("*.py")
    return {name for path in paths for name in pattern.findall(path.read_text(encoding="utf-8"))}

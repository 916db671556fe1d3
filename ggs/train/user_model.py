"""A model of the user's own, ``package.module:function``: imported and built. ``smoke_test`` tries it.

Their code is foreign: whatever it raises, at import, when it builds or when it runs, is a mistake of its
author's: one line that says where, and never a traceback.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import Any

from torch import nn

from ggs.errors import ConfigurationError, GGSError
from ggs.text import shorten
from ggs.train.arguments import suggestion
from ggs.train.error_translation import is_out_of_memory

_NOT_THEIRS = ("<", sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(__file__)))
"""Beginnings of the files that are Python's, installed or ours; those of frozen modules begin with <."""


def builder(name: str) -> Callable[..., Any]:
    """Import ``package.module:function``, also from the working directory, as ``python -m`` would.

    Raises ConfigurationError.
    """
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    way_out = f"give package.module:function, importable from {os.getcwd()}"
    with user_errors(f"model: cannot import {module_name!r} of {name!r}", f"; {way_out}"):
        module = importlib.import_module(module_name)
        missing = object()
        function = getattr(module, attribute, missing)
    if function is missing:
        near = suggestion(attribute, _functions(module))
        raise ConfigurationError(
            f"model: {module_name} has no function {attribute!r}{near}; {way_out}"
        )
    if not callable(function):
        raise ConfigurationError(
            f"model: {name} is a {type(function).__name__}, not a function that returns a model; {way_out}"
        )
    return function


def _functions(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]


def build(name: str, data: dict[str, int], options: dict[str, Any]) -> nn.Module:
    """The model that ``name`` returns, called with ``options`` and those of ``data`` that its signature
    names. Raises ConfigurationError.
    """
    function = builder(name)
    try:
        accepted = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # a built-in one, which has none
        accepted = set()
    arguments = {key: value for key, value in data.items() if key in accepted}
    with user_errors(f"model: {name} fails with { ({**arguments, **options}) }"):
        model = function(**{**arguments, **options})
    if not isinstance(model, nn.Module):
        raise ConfigurationError(
            f"model: {name} returned a {type(model).__name__}, not a torch.nn.Module"
        )
    return model


@contextmanager
def user_errors(what: str, way_out: str = "") -> Iterator[None]:
    """Raise ConfigurationError, ``what (reason)way_out``, for whatever foreign code raises inside."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, GGSError) or is_out_of_memory(error):
            raise
        # No colon after the type: OpenPAI reads "ImportError:" in a log as a reason of its own.
        text = shorten(" ".join(str(error).split()), 200)
        reason = f"{type(error).__name__} {text}".strip() + _location(error.__traceback__)
        raise ConfigurationError(f"{what} ({reason}){way_out}") from None


def _location(trace: TracebackType | None) -> str:
    """`` in FILE, line N``: the last line that is neither ours, nor Python's, nor an installed package."""
    location = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_NOT_THEIRS):
            location = f" in {os.path.basename(file)}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return location

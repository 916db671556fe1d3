"""A person's own script in every worker: ``entrypoint.py [launch flags] --script train.py [ARGS ...]``."""

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ggs.errors import ConfigurationError
from ggs.launch.placement import LaunchOptions

_FLAG = "--script"


def split(argv: Sequence[str]) -> tuple[LaunchOptions, str, tuple[str, ...]] | None:
    """Launch options, script and the script's own arguments; None if argv names no script.

    Everything after the script's name belongs to the script. Raises ConfigurationError for an unknown
    launch flag, a wrong value, or a script that is not there.
    """
    position = next((i for i, word in enumerate(argv) if word.split("=")[0] == _FLAG), None)
    if position is None:
        return None
    flag, equals, path = argv[position].partition("=")
    rest = list(argv[position + 1 :])
    if not equals:
        if not rest:
            raise ConfigurationError(f"{flag} needs a file: {flag} train.py")
        path = rest.pop(0)
    options = _options(argv[:position])
    if not os.path.isfile(path):
        raise ConfigurationError(f"{_FLAG}={path!r} is not a file")
    return options, path, tuple(rest)


def run(path: str, arguments: tuple[str, ...]) -> None:
    """Run a Python file as ``python path arguments`` would, in this process."""
    sys.argv = [path, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    runpy.run_path(path, run_name="__main__")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"before {_FLAG}: {message}")


def _options(argv: Sequence[str]) -> LaunchOptions:
    parser = _Parser(prog="entrypoint.py", allow_abbrev=False)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto")
    parser.add_argument(
        "--rendezvous-timeout", type=float, default=LaunchOptions.rendezvous_timeout
    )
    parser.add_argument("--finish-timeout", type=float, default=LaunchOptions.finish_timeout)
    parser.add_argument("--roles", default="")
    parser.add_argument("--independent", action="store_true")
    values: dict[str, Any] = vars(parser.parse_args(list(argv)))
    values["roles"] = tuple(filter(None, values["roles"].split(",")))
    values["cpu"] = values.pop("device") == "cpu"
    return LaunchOptions(**values)

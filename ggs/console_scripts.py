"""The console scripts ``ggs`` and ``pai``: import what they need, or name the extra that is missing."""

import sys

from ggs.errors import ConfigurationError
from ggs.extras import extras_named


def ggs() -> None:
    """Entry point of the ``ggs`` command."""
    try:
        with extras_named("train"):
            from ggs.cli.main import main

            main()
    except ConfigurationError as error:
        sys.exit(_fail("ggs", error))


def pai() -> None:
    """Entry point of the ``pai`` command."""
    try:
        with extras_named("pai"):
            from ggs.pai.cli.main import main

            main()
    except ConfigurationError as error:
        sys.exit(_fail("pai", error))


def _fail(command: str, error: ConfigurationError) -> int:
    print(f"{command}: {error}", file=sys.stderr)
    return 2

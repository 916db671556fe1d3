"""Checks of arguments that several packages make."""

from ggs.errors import ConfigurationError


def check_whole(name: str, value: object, least: int) -> None:
    """Raise ConfigurationError unless ``value`` is a whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{name} is {value!r}: give a whole number, at least {least}")

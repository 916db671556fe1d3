"""Text for a person: shortened, on one line, split at an equals sign."""

from ggs.errors import ConfigurationError


def shorten(text: str, limit: int) -> str:
    """``text`` in at most ``limit`` characters; "..." at its end says that there was more."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def one_line(error: BaseException, limit: int = 300) -> str:
    """What an exception says, on one line; its type's name where it says nothing."""
    return shorten(" ".join(str(error).split()) or type(error).__name__, limit)


def name_and_value(text: str, option: str) -> tuple[str, str]:
    """The two sides of NAME=VALUE. Raises ConfigurationError, naming the ``option``, for anything else."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigurationError(f"{option} {text}: write NAME=VALUE")
    return name, value

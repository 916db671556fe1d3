"""Text for a person: shortened, on one line, split at an equals sign; bytes in a fitting unit."""

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


def readable_bytes(count: float) -> str:
    """Bytes for people: ``512 B``, ``1.4 kB``, ``3.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"

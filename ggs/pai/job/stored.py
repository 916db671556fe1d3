"""What OpenPAI keeps of a job file, and what the job's init containers read of it.

The server parses the file once, with its own YAML reader. It then keeps the text, its secrets masked by a
regular expression: what stands in the masked part is gone. Its database service parses the masked text
again, and so do the init containers of every attempt, with PyYAML: all of YAML 1.1, where ``yes`` is true,
a tab is no blank and U+2028 ends a line. Sources: rest-server ``utils/protocolSecret.js``,
database-controller ``common/framework.js``, openpai-runtime 0.1.12 ``init.d/initializer.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from ggs.errors import ConfigurationError
from ggs.pai.job.document import Document, DocumentError, parse
from ggs.pai.job.scalars import to_text

MASK = "******"

# JavaScript's ^ also follows its other line ends; its \w is ASCII.
_SECRETS = re.compile(
    r"(?:\A|(?<=[\n\r\u2028\u2029]))(secrets:)[\s\S]*?(?<=[\n\r\u2028\u2029])(\w)", re.ASCII
)


@dataclass(frozen=True)
class Damage:
    """What masking its secrets does to a file."""

    kind: Literal["readable", "syntax", "lost"]
    """The secrets stay readable; the rest is no YAML any more; or the rest lacks some keys."""
    message: str
    keys: tuple[str, ...] = ()


class InitFailure(ConfigurationError):
    """The init container of every task ends with an error; ``line`` (1-based) where one is known."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


def mask(text: str) -> str:
    """``text`` as OpenPAI keeps and shows it."""
    masked = _SECRETS.sub(rf'\1 "{MASK}"\n\2', text + "\nZ", count=1)
    return masked[:-2]


def masking_damage(document: Document) -> Damage | None:
    """What goes wrong when OpenPAI masks a file's secrets; None: nothing."""
    value = document.value
    if not isinstance(value, dict) or "secrets" not in value:
        return None
    try:
        kept = parse(mask(document.text)).value
    except DocumentError as error:
        return Damage("syntax", f"without its secrets the file is not YAML: {error.message}")
    if not isinstance(kept, dict) or kept.get("secrets") != MASK or not kept.keys() <= value.keys():
        return Damage("readable", "the secrets are not masked in the stored configuration")
    lost = [
        key
        for key, item in value.items()
        if key != "secrets" and (key not in kept or repr(kept[key]) != repr(item))
    ]
    return Damage("lost", f"with the secrets goes {', '.join(lost)}", tuple(lost)) if lost else None


def read_in_container(text: str) -> object:
    """The value of a kept job file as the init container gets it.

    Raises:
        InitFailure: it cannot read the file, which the server has accepted by then.
    """
    try:
        return yaml.load(text + "\n", _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(filter(None, (error.context, error.problem)))
        raise InitFailure(problem, mark.line + 1 if mark else 0) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InitFailure(f"the character U+{error.character:04X} is not allowed", line) from None
    except RecursionError:
        raise InitFailure("the file is nested too deeply") from None


def in_container(secrets: Any) -> Any:
    """Secrets as the init container reads them from the file that the server has written.

    JavaScript knows one kind of number: a large integer loses digits, and from 1e21 on it is a float.
    """
    if isinstance(secrets, dict):
        return {key: in_container(item) for key, item in secrets.items()}
    if isinstance(secrets, list):
        return [in_container(item) for item in secrets]
    if isinstance(secrets, int) and not isinstance(secrets, bool):
        text = to_text(secrets)
        return float(text) if "e" in text else int(text)
    return secrets


class _Loader(yaml.SafeLoader):
    """PyYAML's own, with a place for the errors that it raises without one."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (
            ArithmeticError,
            AttributeError,
            TypeError,
            ValueError,
        ) as error:  # no such date, say
            raise yaml.constructor.ConstructorError(
                None, None, str(error), node.start_mark
            ) from None

"""Changes to a job file that leave every other character, comment and anchor alone."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping

from ggs.errors import ConfigurationError
from ggs.pai.job.document import Document, Path, format_path, parse
from ggs.pai.job.scalars import plain_scalar

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,255}")
# What YAML takes for a line break or refuses, and JSON leaves as it is.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")


def edit(document: Document, parameters: Mapping[str, str], name: str | None = None) -> Document:
    """`document` with parameters and the job's name changed: what `--set` and `--name` do.

    A parameter keeps its type: text stays text (`1.10` is quoted), a number must be given a
    number. An anchor before the value stays, so every alias of it follows. ConfigurationError
    for a parameter that the file does not have, a value of another type, or a name that OpenPAI
    would refuse. However many changes there are, the changed text is parsed once.
    """
    changes: dict[Path, tuple[str, object]] = {}
    for key, text in parameters.items():
        changes["parameters", key] = _new_value(document, key, text)
    if name is not None:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"the job name {name!r} is not allowed: use 1 to 255 letters, digits, - and _"
            )
        if not isinstance(document.get("name"), str):
            raise ConfigurationError("the job file has no name to change: add `name: …` at its top")
        changes[("name",)] = (_quoted_if_needed(name), name)
    return _replace(document, changes) if changes else document


def _new_value(document: Document, name: str, text: str) -> tuple[str, object]:
    """How to write `text` in place of the parameter's present value, and what a reader then gets."""
    parameters = document.get("parameters")
    if not isinstance(parameters, dict) or not parameters:
        raise ConfigurationError(f"cannot set {name}: the job file has no parameters")
    if name not in parameters:
        close = difflib.get_close_matches(name, parameters, 1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(parameters)}"
        raise ConfigurationError(f"the job file has no parameter {name!r}: {hint}")
    old = parameters[name]
    if isinstance(old, (dict, list)):
        kind = "mapping" if isinstance(old, dict) else "list"
        raise ConfigurationError(f"parameter {name} is a {kind}: change it in the file")
    new = plain_scalar(text.strip())
    if isinstance(old, bool) and not isinstance(new, bool):
        raise ConfigurationError(
            f"parameter {name} is a truth value, true or false: {text!r} is not one"
        )
    if _is_number(old) and not _is_number(new):
        raise ConfigurationError(f"parameter {name} is a number: {text!r} is not one")
    typed = isinstance(old, bool) or _is_number(old)
    if isinstance(old, str) or (not typed and (new is None or isinstance(new, str))):
        return _quoted_if_needed(text), text
    return text.strip(), new


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _quoted_if_needed(text: str) -> str:
    """`text` as YAML that every reader takes for exactly this text."""
    simple = re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./:@+=-]*", text) and not text.endswith(":")
    if simple and text.lower() not in ("yes", "no", "on", "off") and plain_scalar(text) == text:
        return text
    return _UNPRINTABLE.sub(
        lambda match: f"\\u{ord(match[0]):04x}", json.dumps(text, ensure_ascii=False)
    )


def _replace(document: Document, changes: Mapping[Path, tuple[str, object]]) -> Document:
    """`document` with the scalars at some paths written anew.

    ConfigurationError where that is not what a reader of the result would find there.
    """
    pieces = []
    for path, (written, _) in changes.items():
        if path not in document.spans:
            raise _unusual(path)
        start, end = document.spans[path]
        if start == end:
            written = f" {written}"
        elif document.text[start] in "|>":
            written += "\n"
        pieces.append((start, end, written))
    text = document.text
    for start, end, written in sorted(pieces, reverse=True):
        text = text[:start] + written + text[end:]
    changed = parse(text, document.source)
    for path, (_, value) in changes.items():
        if repr(changed.get(*path)) != repr(value):
            raise _unusual(path)
    return changed


def _unusual(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{format_path(path)} comes from a merge key, or is written unusually: change it in the file"
    )

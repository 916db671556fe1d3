"""Changes to a job file's text that leave every other character, comment and anchor alone."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping

import yaml

from ggs.errors import ConfigurationError
from ggs.pai.job import document

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,255}")


def set_parameters(text: str, values: Mapping[str, str]) -> str:
    """`text` with `parameters.<name>` set for each name: what `--set name=value` does.

    A parameter keeps its type: text stays text (`1.10` is quoted), a number must be given a
    number. An anchor before the value stays, so every alias of it follows. ConfigurationError
    for a name that the file does not have, or a value of another type.
    """
    for name, value in values.items():
        text = _replace(text, ("parameters", name), _scalar(text, name, value))
    return text


def rename(text: str, name: str) -> str:
    """`text` with the job's name changed; ConfigurationError where OpenPAI would refuse it."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"the job name {name!r} is not allowed: use 1 to 255 letters, digits, - and _"
        )
    if not isinstance(document.parse(text).get("name"), str):
        raise ConfigurationError("the job file has no name to change: add `name: …` at its top")
    return _replace(text, ("name",), _quoted_if_needed(name))


def _scalar(text: str, name: str, value: str) -> str:
    """How to write `value` in place of the parameter's present value."""
    parameters = document.parse(text).get("parameters")
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
    if isinstance(old, str):
        return _quoted_if_needed(value)
    new = _plain_value(value)
    if old is None:
        return value if new is not None and not isinstance(new, str) else _quoted_if_needed(value)
    number = isinstance(old, (int, float)) and not isinstance(old, bool)
    fits = isinstance(new, (int, float)) and not isinstance(new, bool) if number else True
    if not fits or (isinstance(old, bool) and not isinstance(new, bool)):
        kind = "number" if number else "truth value, true or false"
        raise ConfigurationError(f"parameter {name} is a {kind}: {value!r} is not one")
    return value.strip()


def _plain_value(text: str) -> object:
    """What the server reads where `text` stands as it is; None where that is not one scalar."""
    if not text.strip() or "\n" in text:
        return None
    try:
        value = document.parse(f"x: {text}").get("x")
    except document.DocumentError:
        return None
    return None if isinstance(value, (dict, list)) else value


def _quoted_if_needed(text: str) -> str:
    """`text` as YAML that every reader takes for exactly this text."""
    simple = re.fullmatch(r"[A-Za-z/][A-Za-z0-9_./:@+=-]*", text) and not text.endswith(":")
    if simple and text.lower() not in ("yes", "no", "on", "off") and _plain_value(text) == text:
        return text
    return json.dumps(text, ensure_ascii=False)


def _replace(text: str, path: tuple[str, ...], new: str) -> str:
    """`text` with the scalar or alias at `path` replaced by `new`.

    ConfigurationError where that is not what a reader of the result would find there.
    """
    text = text.removeprefix("\ufeff")
    place = _find(text, path)
    changed = _replace_at(text, *place, new) if place else text
    found, wanted = document.parse(changed).get(*path), document.parse(f"x: {new}").get("x")
    if place is None or repr(found) != repr(wanted):
        where = document.format_path(path)
        raise ConfigurationError(
            f"{where} comes from a merge key, or is written unusually: change it in the file"
        )
    return changed


def _find(text: str, path: tuple[str, ...]) -> tuple[yaml.Node, yaml.ScalarNode] | None:
    """The key and the scalar at `path`; None where they do not stand there themselves."""
    key: yaml.Node | None = None
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    for step in path:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        # The last of duplicate keys is the one that readers which allow them would use.
        key, node = next((pair for pair in reversed(pairs) if pair[0].value == step), (None, None))
    return (key, node) if key is not None and isinstance(node, yaml.ScalarNode) else None


def _replace_at(text: str, key: yaml.Node, node: yaml.ScalarNode, new: str) -> str:
    after = key.end_mark.index
    tokens = yaml.scan(text, Loader=yaml.SafeLoader)
    token = next(
        (
            token
            for token in tokens
            if isinstance(token, (yaml.ScalarToken, yaml.AliasToken))
            and token.start_mark.index >= after
        ),
        None,
    )
    empty = node.style is None and node.value == "" and not isinstance(token, yaml.AliasToken)
    if empty or token is None:
        end = node.end_mark.index
        return f"{text[:end]} {new}{text[end:]}"
    start, end = token.start_mark.index, token.end_mark.index
    line_end = "\n" if text[start] in "|>" else ""
    return text[:start] + new + line_end + text[end:]

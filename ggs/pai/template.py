"""`<% $parameters.x %>` in a job file, replaced in the same places and ways as OpenPAI does it.

Three engines are at work on a cluster, and each treats an unknown reference in its own way:

- the server (mustache, in commands): leaves it in the text as it stands;
- the init container (pystache, for `$secrets` in commands): escapes HTML in values, and drops
  every other reference that is left;
- the init container (a regular expression, in plugin parameters): dies of an unknown reference
  and of a value that is not text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ggs.errors import ConfigurationError
from ggs.pai.document import to_text

_TAG = re.compile(r"<%\s*(?P<kind>[#^/>{&=!]?)\s*(?P<name>[\s\S]*?)\s*%>")
_INDEX = re.compile(r"\[(\d+)\]")


class _Missing:
    """What a reference to nothing finds."""


MISSING = _Missing()


@dataclass(frozen=True)
class Reference:
    """One `<% … %>` in a text. `kind` is mustache's sigil, empty for a plain reference."""

    kind: str
    name: str
    start: int


def references(text: str) -> list[Reference]:
    """Every reference in `text`, in order."""
    return [Reference(m["kind"], m["name"], m.start()) for m in _TAG.finditer(text)]


def unclosed(text: str) -> bool:
    """Whether a `<%` never ends, for which the server answers 500."""
    return "<%" in _TAG.sub("", text)


def lookup(name: str, context: Mapping[str, object]) -> object:
    """What `$parameters.a.b[0]` names in `context`, or MISSING (also for null, as the server)."""
    value: object = context
    for step in _INDEX.sub(r".\1", name).split("."):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return MISSING
    return MISSING if value is None else value


def render(text: str, context: Mapping[str, object]) -> str:
    """`text` as the server renders commands: known references replaced, unknown ones left.

    `context` maps `$parameters`, `$script`, `$output`, `$data` to their mappings.
    """

    def replace(match: re.Match[str]) -> str:
        if match["kind"]:
            return ""  # the server keeps only text and plain names of mustache's language
        value = lookup(match["name"], context)
        # The server has by then rewritten x[0] as x.0, and that is what it leaves.
        name = _INDEX.sub(r".\1", match["name"])
        return f"<% {name} %>" if value is MISSING else to_text(value)

    return _TAG.sub(replace, text).strip()


def render_secrets(text: str, secrets: Mapping[str, object]) -> str:
    """`text` as the init container renders `$secrets` in a job that has secrets.

    Values are HTML-escaped, and any other reference that is left becomes empty: both are
    OpenPAI's doing, and what a task really gets.
    """

    def replace(match: re.Match[str]) -> str:
        value = lookup(match["name"], {"$secrets": secrets})
        return "" if value is MISSING or match["kind"] else html.escape(str(value))

    return _TAG.sub(replace, text)


def render_plugin_text(text: str, context: Mapping[str, object]) -> str:
    """One text of a plugin's parameters as the init container renders it.

    ConfigurationError for what the init container dies of: an unknown reference, a value that
    is not text.
    """

    def replace(match: re.Match[str]) -> str:
        if not match["name"].startswith("$"):
            return match[0]
        value = lookup(match["name"], context)
        if not isinstance(value, str):
            found = "nothing" if value is MISSING else f"{value!r}, not text"
            raise ConfigurationError(
                f"<% {match['name']} %> in a plugin's parameters names {found}: "
                "OpenPAI's init container fails; quote the value or write it out"
            )
        return value

    return _TAG.sub(replace, text)

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ggs.errors import ConfigurationError
from ggs.pai.job.scalars import to_text

_KINDS = "#^/>{&=!"
_INDEX = re.compile(r"\[(\d+)\]", re.ASCII)
_POSITION = re.compile(r"\d{1,9}", re.ASCII)


class _Missing:
    """What a reference to nothing finds."""


MISSING = _Missing()


@dataclass(frozen=True)
class Reference:
    """One `<% … %>` at `text[start:end]`. `kind` is mustache's sigil, empty for a plain name."""

    kind: str
    name: str
    start: int
    end: int


def references(text: str) -> list[Reference]:
    """Every reference in `text`, in order."""
    parsed = []
    start = text.find("<%")
    while start >= 0:
        end = text.find("%>", start + 2)
        if end < 0:
            break
        inside = text[start + 2 : end].strip()
        kind = inside[0] if inside and inside[0] in _KINDS else ""
        parsed.append(Reference(kind, inside[len(kind) :].strip(), start, end + 2))
        start = text.find("<%", end + 2)
    return parsed


def unclosed(text: str) -> bool:
    """Whether a `<%` never ends, for which the server answers 500."""
    closed = references(text)
    return "<%" in text[closed[-1].end if closed else 0 :]


def _replace(text: str, replacement: Callable[[Reference], str]) -> str:
    parts = []
    position = 0
    for reference in references(text):
        parts += [text[position : reference.start], replacement(reference)]
        position = reference.end
    return "".join([*parts, text[position:]])


def lookup(name: str, context: Mapping[str, object]) -> object:
    """What `$parameters.a.b[0]` names in `context`, or MISSING (also for null, as the server)."""
    value: object = context
    for step in _INDEX.sub(r".\1", name).split("."):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and _POSITION.fullmatch(step) and int(step) < len(value):
            value = value[int(step)]
        else:
            return MISSING
    return MISSING if value is None else value


def render(text: str, context: Mapping[str, object]) -> str:
    """`text` as the server renders commands: known references replaced, unknown ones left.

    `context` maps `$parameters`, `$script`, `$output`, `$data` to their mappings.
    """

    def replace(reference: Reference) -> str:
        if reference.kind:
            return ""  # the server keeps only text and plain names of mustache's language
        value = lookup(reference.name, context)
        # The server has by then rewritten x[0] as x.0, and that is what it leaves.
        name = _INDEX.sub(r".\1", reference.name)
        return f"<% {name} %>" if value is MISSING else to_text(value)

    return _replace(text, replace).strip()


def render_secrets(text: str, secrets: Mapping[str, object]) -> str:
    """`text` as the init container renders `$secrets` in a job that has secrets.

    Values are HTML-escaped, and any other reference that is left becomes empty: both are
    OpenPAI's doing, and what a task really gets.
    """

    def replace(reference: Reference) -> str:
        value = lookup(reference.name, {"$secrets": secrets})
        return "" if value is MISSING or reference.kind else html.escape(str(value))

    return _replace(text, replace)


def render_plugin_text(text: str, context: Mapping[str, object]) -> str:
    """One text of a plugin's parameters as the init container renders it.

    ConfigurationError for what the init container dies of: an unknown reference, a value that
    is not text.
    """

    def replace(reference: Reference) -> str:
        if not reference.name.startswith("$"):
            return text[reference.start : reference.end]
        value = lookup(reference.name, context)
        if not isinstance(value, str):
            what = "nothing" if value is MISSING else f"{value!r}, not text"
            raise ConfigurationError(
                f"<% {reference.name} %> in a plugin's parameters names {what}: "
                "OpenPAI's init container fails; quote the value or write it out"
            )
        return value

    return _replace(text, replace)

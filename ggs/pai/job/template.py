"""`<% $parameters.x %>` in a job file, replaced in the same places and ways as OpenPAI does it.

Two engines are at work on a cluster, and each treats an unknown reference in its own way:

- the server (mustache, in commands): leaves it in the text as it stands;
- the init container (pystache, for `$secrets` in commands): escapes HTML in values, and drops
  every other reference that is left.

Plugin parameters have a third one: `ggs.pai.job.plugins`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass

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


def steps(name: str) -> list[str | int]:
    """`a.b[0]` as the keys and positions `a`, `b`, 0."""
    return [
        int(step) if _POSITION.fullmatch(step) else step
        for step in _INDEX.sub(r".\1", name).split(".")
    ]


def _python_text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(_by_number(value))


def _by_number(value: object) -> object:
    """`value` with its lists as mappings from position to item: what the init container makes of them."""
    if isinstance(value, list):
        return {str(number): item for number, item in enumerate(value)}
    if isinstance(value, dict):
        return {key: _by_number(item) for key, item in value.items()}
    return value


def lookup(name: str, context: Mapping[str, object], *, null: bool = False) -> object:
    """What `$parameters.a.b[0]` names in `context`, or MISSING; for the server, not for the init container
    (`null`), also where that is null."""
    value: object = context
    for step in _INDEX.sub(r".\1", name).split("."):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and _POSITION.fullmatch(step) and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(value, (list, str)) and step == "length" and not null:
            value = len(value)
        else:
            return MISSING
    return MISSING if value is None and not null else value


def render(text: str, context: Mapping[str, object]) -> str:
    """`text` as the server renders commands: known references replaced, unknown ones left.

    `context` maps `$parameters`, `$script`, `$output`, `$data` to their mappings.
    """

    parts = []
    position = 0
    section = ""  # its name: the server drops a section with all in it
    for reference in references(text):
        if not section:
            parts.append(text[position : reference.start])
        position = reference.end
        if section:
            section = "" if (reference.kind, reference.name) == ("/", section) else section
        elif reference.kind in ("#", "^"):
            section = reference.name
        elif (
            not reference.kind
        ):  # the server keeps only text and plain names of mustache's language
            value = lookup(reference.name, context)
            # The server has by then rewritten x[0] as x.0, and that is what it leaves.
            name = _INDEX.sub(r".\1", reference.name)
            parts.append(f"<% {name} %>" if value is MISSING else to_text(value))
    return "".join([*parts, "" if section else text[position:]]).strip()


def render_secrets(text: str, secrets: Mapping[str, object]) -> str:
    """`text` as the init container renders `$secrets` in a job that has secrets.

    Values are HTML-escaped, and any other reference that is left becomes empty: both are
    OpenPAI's doing, and what a task really gets.
    """

    parts = []
    position = 0
    for reference in references(text):
        value = lookup(reference.name, {"$secrets": secrets}, null=True)
        known = value is not MISSING and not reference.kind
        shown = html.escape(_python_text(value)) if known else ""
        parts += [text[position : reference.start], shown]
        position = reference.end
    return "".join([*parts, text[position:]])

"""A job file's YAML as OpenPAI's server reads it, with the line of every value.

OpenPAI parses job files with js-yaml 3 (its successor LTP with js-yaml 4), which does not read
every scalar as PyYAML does; where another reader disagrees, the document notes it. Reading a
hostile file takes bounded time and memory: its size, its depth and the number of values after
alias expansion are limited, and only plain data is ever built.

One pass over the text gives everything that `edit`, `Job` and `ggs.pai.validate` ask for.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath

import yaml

from ggs.pai.job.scalars import (
    VERSION_DEPENDENT,
    YAML_1_1_BOOLEANS,
    Reader,
    construct,
    implicit_tag,
    to_text,
)
from ggs.pai.job.yaml_nodes import (
    IMPLICIT,
    MAX_DEPTH,
    Aliases,
    DocumentError,
    compose,
    scalar_text,
)

__all__ = [
    "MAX_BYTES",
    "Document",
    "DocumentError",
    "Note",
    "Path",
    "contains",
    "format_path",
    "load",
    "parse",
    "read_text",
    "walk",
]

# Where a value sits: mapping keys and list positions from the top of the file.
Path = tuple["str | int", ...]

MAX_BYTES = 100 * 1024  # the server's body limit; a longer file is refused unread
MAX_VALUES = 60_000  # more than a file of that size has, unless aliases multiply them

_TAG = "tag:yaml.org,2002:"
# The anchor and the tag before a scalar, in any order, with blanks and comments.
_PROPERTIES = re.compile(r"(?:[&!]\S*|\s+(?:#.*)?)*")


@dataclass(frozen=True)
class Note:
    """Something in the YAML itself that readers refuse or disagree about."""

    rule: str
    path: Path
    line: int
    message: str


@dataclass
class Document:
    """The plain values of a YAML text, the 1-based line of each, and where scalars can be replaced."""

    text: str
    source: str = "job file"
    """What messages call it: the file's path, if it has one."""
    value: object = None
    lines: dict[Path, int] = field(default_factory=dict)
    spans: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """Start and end in `text` of each scalar, or alias of one, that is written at a key itself: without
    its anchor and tag, and empty where nothing is written."""
    written: dict[Path, str] = field(default_factory=dict)
    """The text of each unquoted scalar that the server does not take as text."""
    notes: list[Note] = field(default_factory=list)
    root: yaml.Node | None = field(default=None, repr=False, compare=False)

    def read_as(self, reader: Reader) -> object:
        """The value of the whole text for another reader than OpenPAI 1.8.1's."""
        if self.root is None or all(note.rule != "yaml-scalar" for note in self.notes):
            return self.value
        return _Builder(Document(self.text), {}, reader).build(self.root, ())

    def line(self, path: Path) -> int:
        """Line of `path`, or of its nearest parent that the file contains."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def get(self, *path: str | int) -> object:
        """The value at `path`, None where the file has none."""
        value = self.value
        for step in path:
            if not contains(value, step):
                return None
            value = value[step]  # type: ignore[index]  # contains() has looked
        return value


def contains(value: object, step: str | int) -> bool:
    """Whether `value` is a mapping with the key `step`, or a list with that position."""
    if isinstance(value, list):
        return isinstance(step, int) and step < len(value)
    return isinstance(value, dict) and step in value


def format_path(path: Path) -> str:
    """`("taskRoles", "worker", "commands", 0)` as `taskRoles.worker.commands[0]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def read_text(path: FilePath) -> str:
    """A job file's text; DocumentError where it is too long, OSError as the system's.

    At most one byte over the server's limit is read, however long the file is. Bytes that are not UTF-8
    become U+FFFD each, as on the server.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        message = f"the file is longer than {MAX_BYTES} bytes"
        raise DocumentError("file-too-large", message, source=str(path))
    return data.decode("utf-8-sig", errors="replace")


def load(source: FilePath | str) -> Document:
    """The document in a file (a Path) or in a text (a str); raises what `read_text` and `parse` do."""
    return parse(source) if isinstance(source, str) else parse(read_text(source), str(source))


def parse(text: str, source: str = "job file") -> Document:
    """Read one YAML document; DocumentError where OpenPAI could not read it, or should not try."""
    try:
        return _parse(text.removeprefix("\ufeff"), source)
    except DocumentError as error:
        raise DocumentError(error.rule, error.message, error.line, source) from None


def _parse(text: str, source: str) -> Document:
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > _max_encoded(text):
        raise DocumentError("file-too-large", f"the file is longer than {MAX_BYTES} bytes")
    root, aliases = compose(text)
    document = Document(text, source, root=root)
    if root is not None:
        document.value = _Builder(document, aliases).build(root, ())
    return document


def _max_encoded(text: str) -> int:
    """The limit on the file's bytes: a replaced byte has become three."""
    return MAX_BYTES + 2 * text.count("\ufffd")


class _Builder:
    """Turns nodes into plain values, and notes lines, spans, duplicate keys and doubtful scalars."""

    def __init__(self, document: Document, aliases: Aliases, reader: Reader = "openpai") -> None:
        self._document = document
        self._aliases = aliases
        self._reader: Reader = reader
        self._count = 0
        self._built: set[int] = set()
        self._cut = False
        self._merging = 0

    def build(self, node: yaml.Node, path: Path) -> object:
        line = node.start_mark.line + 1
        self._count += 1
        if id(node) in self._built and (self._count > MAX_VALUES or len(path) > MAX_DEPTH):
            if not self._cut:
                message = f"more than {MAX_VALUES} values, or an alias inside itself"
                self._note("yaml-aliases", path[:2], line, message)
            self._cut = True
            return None
        self._built.add(id(node))
        self._document.lines.setdefault(path, line)
        tag = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.MappingNode) and tag in ("map", "set"):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and tag in ("seq", "omap", "pairs"):
            items = [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
            if tag == "pairs":
                return [pair for item in items if isinstance(item, dict) for pair in item.items()]
            return items
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, tag, path)
        raise DocumentError("yaml-tag", f"the tag {node.tag} is not allowed", line)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        values: dict[str, object] = {}
        merged: dict[str, object] = {}
        for key_node, value_node in node.value:
            if _is_merge(key_node):
                merged |= self._merge(value_node, path)
        for key_node, value_node in node.value:
            if _is_merge(key_node):
                continue
            key = self._key(key_node, path)
            line = key_node.start_mark.line + 1
            if key in values:
                message = f"the key {key!r} appears twice"
                self._note("yaml-duplicate-key", (*path, key), line, message)
            here = (*path, key)
            self._document.lines[here] = line
            values[key] = self.build(value_node, here)
            if isinstance(value_node, yaml.ScalarNode) and not self._merging:
                alias = self._aliases.get((id(node), id(key_node)))
                self._document.spans[here] = alias or _span(self._document.text, value_node)
        return merged | values

    def _merge(self, node: yaml.Node, path: Path) -> dict[str, object]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, object] = {}
        self._merging += 1
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                line = node.start_mark.line + 1
                raise DocumentError("yaml-syntax", "`<<` merges only mappings", line)
            built = self.build(source, path)
            if isinstance(built, dict):  # else the limit on values is reached
                merged = built | merged
        self._merging -= 1
        return merged

    def _key(self, node: yaml.Node, path: Path) -> str:
        if not isinstance(node, yaml.ScalarNode):
            line = node.start_mark.line + 1
            self._note("yaml-key", path, line, "a list or mapping is used as a key")
            return to_text(self.build(node, (*path, "?")))
        return to_text(self._scalar(node, node.tag.removeprefix(_TAG), path, key=True))

    def _scalar(self, node: yaml.ScalarNode, tag: str, path: Path, *, key: bool = False) -> object:
        text, line = scalar_text(node), node.start_mark.line + 1
        if "\ufffd" in text:
            message = "a character is not UTF-8, or is U+FFFD, which stands for such a one"
            self._note("yaml-encoding", path, line, message)
        if tag == IMPLICIT:
            tag = implicit_tag(text, self._reader)
            self._compare_readers(text, tag, path, line)
            if tag != "str" and not key:
                self._document.written[path] = text
        try:
            if tag == "binary":
                return base64.b64decode("".join(text.split()), validate=True)
            return construct(tag, text, self._reader)
        except KeyError:
            raise DocumentError("yaml-tag", f"the tag {node.tag} is not allowed", line) from None
        except (ValueError, binascii.Error):
            raise DocumentError("yaml-syntax", f"{text!r} is not of type {tag}", line) from None

    def _compare_readers(self, text: str, tag: str, path: Path, line: int) -> None:
        if tag != "str" and VERSION_DEPENDENT.fullmatch(text):
            self._note("yaml-scalar", path, line, f"LTP reads {text!r} as a different value")
        elif YAML_1_1_BOOLEANS.fullmatch(text) or VERSION_DEPENDENT.fullmatch(text):
            message = f"the server reads {text!r} as text, other programs do not"
            self._note("yaml-scalar", path, line, message)

    def _note(self, rule: str, path: Path, line: int, message: str) -> None:
        self._document.notes.append(Note(rule, path, line, message))


def _is_merge(key: yaml.Node) -> bool:
    return key.tag == _TAG + "merge" or (key.tag == IMPLICIT and key.value == "<<")


def _span(text: str, node: yaml.ScalarNode) -> tuple[int, int]:
    start, end = node.start_mark.index, node.end_mark.index
    if node.style is None and not node.value:
        return end, end
    properties = _PROPERTIES.match(text, start)
    return (properties.end() if properties else start), end


def walk(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Every value below `value`, parents first, with its path."""
    yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk(item, (*path, index))

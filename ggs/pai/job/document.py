"""A job file's YAML as OpenPAI's server reads it, with the line of every value.

OpenPAI parses job files with js-yaml 3 (its successor LTP with js-yaml 4), which does not read
every scalar as PyYAML does; where another reader disagrees, the document notes it. Reading a
hostile file takes bounded time and memory: its size, its depth and the number of values after
alias expansion are limited, and only plain data is ever built.

One pass over the text gives everything that `edit`, `Job` and `ggs.pai.validate` ask for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath

import yaml

from ggs.errors import ConfigurationError
from ggs.pai.job.scalars import (
    PATTERNS,
    VERSION_DEPENDENT,
    YAML_1_1_BOOLEANS,
    construct,
    to_text,
)

# Where a value sits: mapping keys and list positions from the top of the file.
Path = tuple["str | int", ...]

MAX_BYTES = 100 * 1024  # the server's body limit; a longer file is refused unread
MAX_DEPTH = 40
MAX_VALUES = 5_000  # counted after aliases are expanded

_TAG = "tag:yaml.org,2002:"
# The anchor and the tag before a scalar, in any order, with blanks and comments.
_PROPERTIES = re.compile(r"(?:[&!]\S*|\s+(?:#.*)?)*")


class DocumentError(ConfigurationError):
    """The text cannot be read as one YAML document. `rule` names why, `line` (1-based) where,
    `message` says it without file and line."""

    def __init__(self, rule: str, message: str, line: int = 1, source: str = "job file") -> None:
        super().__init__(f"{source}:{line}: {message}")
        self.rule = rule
        self.line = line
        self.message = message


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
    notes: list[Note] = field(default_factory=list)

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
    """A job file's text; DocumentError where it is too long or not UTF-8, OSError as the system's.

    At most one byte over the server's limit is read, however long the file is.
    """
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        message = f"the file is longer than {MAX_BYTES} bytes"
        raise DocumentError("file-too-large", message, source=str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DocumentError(
            "yaml-encoding", "the file is not UTF-8 text", line, str(path)
        ) from None


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
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise DocumentError("file-too-large", f"the file is longer than {MAX_BYTES} bytes")
    try:
        loader = _JobLoader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = f"U+{error.character:04X}"
        raise DocumentError(
            "yaml-syntax", f"the character {character} is not allowed", line
        ) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error) from None
    document = Document(text, source)
    if node is not None:
        document.value = _Builder(document, loader.aliases).build(node, ())
    return document


def _syntax_error(error: yaml.MarkedYAMLError) -> DocumentError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    if error.context == "expected a single document in the stream":
        return DocumentError("yaml-documents", "a second document starts here", line)
    message = " ".join(filter(None, (error.context, error.problem)))
    return DocumentError("yaml-syntax", message, line)


# Spans of aliases, by the mapping and the key (its node) that they stand at.
_Aliases = dict[tuple[int, int], tuple[int, int]]


class _JobLoader(yaml.SafeLoader):
    """PyYAML's safe loader with js-yaml 3's scalars and a limited depth."""

    _depth = 0
    _count = 0

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.aliases: _Aliases = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH or self._count > 2 * MAX_VALUES:  # keys are nodes too
            limit = f"{MAX_DEPTH} levels" if self._depth > MAX_DEPTH else f"{MAX_VALUES} values"
            line = self.get_mark().line + 1
            raise DocumentError("yaml-too-complex", f"more than {limit}", line)
        event = self.peek_event()  # type: ignore[no-untyped-call]
        try:
            node = super().compose_node(parent, index)
        finally:
            self._depth -= 1
        if isinstance(event, yaml.AliasEvent):  # its node has the marks of the anchor's value
            assert event.start_mark
            assert event.end_mark
            self.aliases[id(parent), id(index)] = (event.start_mark.index, event.end_mark.index)
        return node


_JobLoader.yaml_implicit_resolvers = {}
for _name, _pattern in PATTERNS.items():
    _JobLoader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern.pattern})\Z"), None)


class _Builder:
    """Turns nodes into plain values, and notes lines, spans, duplicate keys and doubtful scalars."""

    def __init__(self, document: Document, aliases: _Aliases) -> None:
        self._document = document
        self._aliases = aliases
        self._count = 0
        self._merging = 0

    def build(self, node: yaml.Node, path: Path) -> object:
        line = node.start_mark.line + 1
        self._count += 1
        if self._count > MAX_VALUES or len(path) > MAX_DEPTH:
            message = f"more than {MAX_VALUES} values, or an alias inside itself"
            raise DocumentError("yaml-too-complex", message, line)
        self._document.lines.setdefault(path, line)
        tag = node.tag.removeprefix(_TAG)
        if isinstance(node, yaml.MappingNode) and tag in ("map", "set"):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and tag == "seq":
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, tag, path)
        raise DocumentError("yaml-tag", f"the tag {node.tag} is not allowed", line)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        values: dict[str, object] = {}
        merged: dict[str, object] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                merged |= self._merge(value_node, path)
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
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
            assert isinstance(built, dict)
            merged = built | merged
        self._merging -= 1
        return merged

    def _key(self, node: yaml.Node, path: Path) -> str:
        line = node.start_mark.line + 1
        if not isinstance(node, yaml.ScalarNode):
            raise DocumentError("yaml-key", "a list or mapping is used as a key", line)
        return to_text(self._scalar(node, node.tag.removeprefix(_TAG), path))

    def _scalar(self, node: yaml.ScalarNode, tag: str, path: Path) -> object:
        text, line = str(node.value), node.start_mark.line + 1
        if node.style is None and tag != "str" and VERSION_DEPENDENT.fullmatch(text):
            self._note("yaml-scalar", path, line, f"LTP reads {text!r} as a different value")
        elif node.style is None and (
            YAML_1_1_BOOLEANS.fullmatch(text) or VERSION_DEPENDENT.fullmatch(text)
        ):
            self._note(
                "yaml-scalar",
                path,
                line,
                f"the server reads {text!r} as text, other programs do not",
            )
        try:
            return construct(tag, text)
        except KeyError:
            raise DocumentError("yaml-tag", f"the tag {node.tag} is not allowed", line) from None
        except ValueError:
            raise DocumentError("yaml-syntax", f"{text!r} is not of type {tag}", line) from None

    def _note(self, rule: str, path: Path, line: int, message: str) -> None:
        self._document.notes.append(Note(rule, path, line, message))


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

"""A job file's text as YAML nodes, split as js-yaml splits it.

PyYAML's parser does the work. Where it is stricter than js-yaml, or takes other characters for line ends, the
text is adapted first, character for character, so that every place in it stays what it was. What the init
container, which has PyYAML itself, makes of such a file is the business of `ggs.pai.job.stored`.
"""

from __future__ import annotations

import yaml

from ggs.errors import ConfigurationError

MAX_DEPTH = 200

IMPLICIT = "?"
"""The tag of an unquoted scalar that has none: its text decides, by the rules of whoever reads it."""

# Line ends for PyYAML, mere characters for js-yaml, and stand-ins that Unicode has reserved for programs.
_TO_STAND_IN = {0x85: "\ufdd0", 0x2028: "\ufdd1", 0x2029: "\ufdd2"}
_FROM_STAND_IN = {ord(stand_in): chr(code) for code, stand_in in _TO_STAND_IN.items()}
_UNPRINTABLE = "\ufdd3"

# Spans of aliases, by the mapping and the key (its node) that they stand at.
Aliases = dict[tuple[int, int], tuple[int, int]]


class DocumentError(ConfigurationError):
    """The text cannot be read as one YAML document. `rule` names why, `line` (1-based) where,
    `message` says it without file and line."""

    def __init__(self, rule: str, message: str, line: int = 1, source: str = "job file") -> None:
        super().__init__(f"{source}:{line}: {message}")
        self.rule = rule
        self.line = line
        self.message = message


def compose(text: str) -> tuple[yaml.Node | None, Aliases]:
    """The root node of a text (None: there is nothing in it) and where its aliases stand.

    Raises:
        DocumentError: OpenPAI's server could not read it, or it is nested too deeply.
    """
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise DocumentError("yaml-syntax", "the character U+0000 is not allowed", line)
    # js-yaml minds other control characters only outside comments: `scalar_text` sees whether it is.
    adapted = yaml.reader.Reader.NON_PRINTABLE.sub(_UNPRINTABLE, text.translate(_TO_STAND_IN))
    loader = _JobLoader(adapted)
    try:
        return loader.get_single_node(), loader.aliases
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error) from None
    except RecursionError:
        raise DocumentError("yaml-too-complex", "nested too deeply to be read here") from None
    finally:
        loader.dispose()


def scalar_text(node: yaml.ScalarNode) -> str:
    """A scalar's text with the characters that the file has.

    Raises:
        DocumentError: a character in it is none that YAML allows.
    """
    text = str(node.value)
    if _UNPRINTABLE in text:
        line = node.start_mark.line + 1
        raise DocumentError("yaml-syntax", "a control character stands here", line)
    return text.translate(_FROM_STAND_IN)


def _syntax_error(error: yaml.MarkedYAMLError) -> DocumentError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    if error.context == "expected a single document in the stream":
        return DocumentError("yaml-documents", "a second document starts here", line)
    message = " ".join(filter(None, (error.context, error.problem)))
    return DocumentError("yaml-syntax", message, line)


class _JobLoader(yaml.SafeLoader):
    """PyYAML's safe loader with js-yaml's leniency and a limited depth; scalars stay unresolved."""

    _depth = 0

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.aliases: Aliases = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            line = self.get_mark().line + 1
            raise DocumentError("yaml-too-complex", f"more than {MAX_DEPTH} levels", line)
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if not isinstance(event, yaml.AliasEvent):
            self.anchors.pop(event.anchor, None)  # js-yaml lets a second anchor hide the first
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):  # its node has the marks of the anchor's value
            assert event.start_mark
            assert event.end_mark
            self.aliases[id(parent), id(index)] = (event.start_mark.index, event.end_mark.index)
        return node

    def resolve(self, kind: type[yaml.Node], value: object, implicit: object) -> str:
        if kind is yaml.ScalarNode and isinstance(implicit, tuple) and implicit[0]:
            return IMPLICIT
        return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]

    def scan_to_next_token(self) -> None:
        """A tab is a blank, except where it indents a line of a block."""
        super().scan_to_next_token()
        while self.peek() == "\t":
            start = self.buffer.rfind("\n", 0, self.pointer) + 1
            end = self.buffer.find("\n", self.pointer)
            before = self.buffer[start : self.pointer]
            after = self.buffer[self.pointer : end if end >= 0 else None].strip("\0\r\t ")
            if not self.flow_level and not before.strip() and after and not after.startswith("#"):
                raise DocumentError("yaml-syntax", "a tab indents this line", self.line + 1)
            while self.peek() == "\t":
                self.forward()
            super().scan_to_next_token()

    def scan_plain_spaces(self, indent: int, start_mark: yaml.Mark) -> list[str]:
        length = 0
        while self.peek(length) in ("\t", " "):
            length += 1
        blanks: str = self.prefix(length)
        if "\t" not in blanks or self.peek(length) == "#":
            return super().scan_plain_spaces(indent, start_mark) or []
        self.forward(length)
        if self.peek() in "\0\r\n":
            return super().scan_plain_spaces(indent, start_mark) or []
        return [blanks]

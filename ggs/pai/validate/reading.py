"""What is wrong with the YAML itself, before it is a job."""

from __future__ import annotations

from collections.abc import Iterator

from ggs.pai.job.document import MAX_BYTES
from ggs.pai.job.yaml_nodes import MAX_DEPTH
from ggs.pai.validate.finding import RULES, JobView, Rule, Violation, rule

_BAD_YAML = "the server answers 500 with its YAML reader's message"

for _name, _consequence, _fix, _fact in (
    (
        "file-too-large",
        "the server answers 413 to a body over 100 kB",
        "put long scripts into the image or a storage",
        f"A job file may have at most {MAX_BYTES} bytes.",
    ),
    (
        "yaml-syntax",
        f"{_BAD_YAML}, or takes it and the init container fails on every attempt",
        "correct the YAML; text with : # {{ or quotes in it is best put between quotes",
        "Text that is not YAML is answered with 500, not with 400. The server's reader is more lenient than "
        "the init container's in some places: such a file is stored, and fails later.",
    ),
    (
        "yaml-documents",
        _BAD_YAML,
        "submit each document as a file of its own",
        "The server reads a single document.",
    ),
    (
        "yaml-tag",
        _BAD_YAML,
        "remove the tag",
        "The server builds plain data only and refuses tags such as !!python/… and !!js/….",
    ),
    (
        "yaml-too-complex",
        "OpenPAI's server may take it; its init container fails at about 480 levels",
        "write the values out on fewer levels",
        f"A file may be {MAX_DEPTH} levels deep: the limit is that of this check.",
    ),
):
    RULES[_name] = Rule(_name, "error", "both", _consequence, _fix, _fact)


@rule(
    "yaml-encoding",
    "error",
    consequence="the server puts U+FFFD in the place of each byte that is not UTF-8",
    fix="save the file as UTF-8",
)
def encoding(view: JobView) -> Iterator[Violation]:
    """Job files are UTF-8 text; in a comment other bytes do no harm."""
    yield from _notes(view, "yaml-encoding")


@rule(
    "yaml-aliases",
    "warning",
    consequence="what lies beyond is not checked; the server takes it",
    fix="write the values out",
)
def aliases(view: JobView) -> Iterator[Violation]:
    """Aliases of aliases multiply: this check follows them as far as to 60000 values."""
    yield from _notes(view, "yaml-aliases")


@rule(
    "yaml-key",
    "error",
    consequence="the server turns the key into the text [object Object]: where text is needed it answers "
    "400, elsewhere 202, and the init container fails on every attempt",
    fix="put text that starts with { between quotes; references are written <% $parameters.x %>",
)
def structured_key(view: JobView) -> Iterator[Violation]:
    """Keys are text. {{ x }} without quotes is a mapping whose key is a mapping, which Python cannot
    read."""
    yield from _notes(view, "yaml-key")


@rule(
    "yaml-duplicate-key",
    "error",
    consequence=_BAD_YAML,
    fix="keep one of the two",
)
def duplicate_key(view: JobView) -> Iterator[Violation]:
    """A mapping may not contain a key twice; other readers silently take the last."""
    yield from _notes(view, "yaml-duplicate-key")


@rule(
    "yaml-scalar",
    "warning",
    consequence="the job depends on which program reads the file",
    fix="put it between quotes if it is text, else write a plain number, true or false",
)
def scalar(view: JobView) -> Iterator[Violation]:
    """OpenPAI reads YAML 1.1 without yes and no, LTP reads YAML 1.2, Python tools read all of
    1.1: 012 is 10 or 12, 1:30 is 90 or text, yes is text or true."""
    yield from _notes(view, "yaml-scalar")


def _notes(view: JobView, name: str) -> Iterator[Violation]:
    for note in view.document.notes:
        if note.rule == name:
            yield Violation(note.path, note.message, line=note.line)

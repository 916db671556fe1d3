"""What is wrong with the YAML itself, before it is a job."""

from __future__ import annotations

from collections.abc import Iterator

from ggs.pai.job.document import MAX_BYTES, MAX_DEPTH, MAX_VALUES
from ggs.pai.validate.finding import RULES, JobView, Rule, Violation, rule

_BAD_YAML = "the server answers 500 with its YAML reader's message"

for _name, _consequence, _fix, _fact in (
    (
        "file-too-large",
        "the server answers 413 to a body over 100 kB",
        "put long scripts into the image or a storage",
        f"A job file may have at most {MAX_BYTES} bytes.",
    ),
    ("yaml-encoding", _BAD_YAML, "save the file as UTF-8", "Job files are UTF-8 text."),
    (
        "yaml-syntax",
        _BAD_YAML,
        "correct the YAML; text with : # {{ or quotes in it is best put between quotes",
        "Text that is not YAML is answered with 500, not with 400.",
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
        "yaml-key",
        "the server turns the key into the text [object Object] and answers 400",
        "put text that starts with { between quotes; references are written <% $parameters.x %>",
        "Keys are text. {{ x }} without quotes is a mapping whose key is a mapping.",
    ),
    (
        "yaml-too-complex",
        "nothing good: no job needs it, and reading it costs the server time and memory",
        "write the values out",
        f"A file may be {MAX_DEPTH} levels deep and have {MAX_VALUES} values after its aliases "
        "are expanded; both limits are those of this check.",
    ),
):
    RULES[_name] = Rule(_name, "error", "both", _consequence, _fix, _fact)


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

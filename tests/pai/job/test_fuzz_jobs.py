"""Job files that are none, or were damaged: findings or one sentence, in bounded memory and time."""

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggs.errors import ConfigurationError
from ggs.pai.client.submission import prepare
from ggs.pai.job.document import MAX_BYTES, DocumentError, parse, read_text
from ggs.pai.job.edit import edit
from ggs.pai.validate import validate
from tests.fuzz import EDITS, Edits, bounded, cases, damaged

FILES = sorted((Path(__file__).resolve().parents[3] / "pai_jobs").glob("*.yaml"))
CONTENTS = [file.read_bytes() for file in FILES]


def read(file: Path) -> None:
    """Everything that is done with a job file before it is sent."""
    try:
        text = read_text(file)
    except DocumentError:
        return
    lines = len(re.split("[\n\r\x85\u2028\u2029]", text))  # the line breaks of YAML 1.1
    for finding in validate(text):
        assert 1 <= finding.line <= lines
        assert "\n" not in finding.message
    with suppress(ConfigurationError):
        changed = edit(parse(text), {"epochs": "5"}, "two")
        assert changed.get("name") == "two"
        assert changed.get("parameters", "epochs") in (5, "5")
        prepare(changed)


@pytest.mark.fuzz
@given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8")))
def test_any_content(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(content)
    read(file)


YAML_PIECES = st.lists(
    st.sampled_from(
        ["a", "0x1", "1:2", "- ", ": ", "? ", "\n", "\n  ", "{", "}", "[", "]", ", ", "&a ", "*a", "<<: ",
         "!!int ", "!!float ", "!!timestamp ", "!!set ", "|\n  ", "'", '"', "#", "name: ", "parameters: ",
         "epochs: ", "secrets: ", "taskRoles: ", "commands: ", "<% $parameters.a %>", "\\", "~", "%"]
    ),
    max_size=30,
).map("".join)  # fmt: skip


@pytest.mark.fuzz
@cases(2)
@given(YAML_PIECES)
def test_any_pieces_of_yaml(tmp_path: Path, text: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    read(file)


@pytest.mark.fuzz
@cases(0.3)
@given(st.sampled_from(CONTENTS), EDITS)
def test_any_damaged_file(tmp_path: Path, content: bytes, edits: Edits) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(damaged(content, edits))
    read(file)


BOMB = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
MERGES = ["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 40))]
HOSTILE = {
    "aliases": "\n".join(BOMB),
    "merges": "\n".join(MERGES),
    "depth": "a: " + "[" * 90_000,
    "deep mappings": "a: " + "{a: " * 20_000,
    "deep lines": "- " * 50_000,
    "hexadecimal": "name: 0x" + "f" * 90_000,
    "a number as key": "? 0x" + "f" * 90_000 + "\n: 1",
    "binary": "protocolVersion: 0b" + "1" * 90_000,
    "octal": "name: 0" + "7" * 90_000,
    "sexagesimal": "name: " + "1:" * 45_000 + "1",
    "sexagesimal fraction": "name: " + "1:" * 45_000 + "1.5",
    "digits": "name: " + "9" * 90_000,
    "a long text": "name: " + "x" * 90_000,
    "a long key": '"' + "x" * 90_000 + '": 1',
    "question marks": "? " * 45_000,
    "quotes": "'" * 90_000,
    "anchors": "".join(f"&a{i} " for i in range(10_000)),
    "tags": "!" * 90_000,
    "references": "name: one\ntaskRoles: {a: {commands: ['" + "<%" * 40_000 + "']}}",
    "blanks": "a:" + " " * 90_000 + "b\n" * 2000,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_made_to_be_large_or_slow(tmp_path: Path, case: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(HOSTILE[case])
    with bounded(seconds=10):
        read(file)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    with file.open("wb") as handle:
        handle.truncate(2**30)
    with bounded(), pytest.raises(DocumentError, match=f"longer than {MAX_BYTES} bytes"):
        read_text(file)

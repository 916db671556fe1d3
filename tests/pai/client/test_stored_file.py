import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ggs.errors import ConfigurationError
from ggs.pai.client.stored_file import to_document, to_text
from ggs.pai.job import document

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "pai_jobs").glob("*.yaml"))

# what some YAML reader takes for another thing than a text
AMBIGUOUS = [
    "1e3",
    "012",
    "1:30",
    "0x1f",
    "2020-01-01",
    "yes",
    "on",
    "null",
    "~",
    "1_000",
    ".5",
    "+1",
]
AMBIGUOUS += [
    "",
    " a",
    "a ",
    "a: b",
    "a #b",
    "- a",
    "&a",
    "*a",
    "!t",
    "%x",
    "@x",
    "`x",
    "{a}",
    "[a",
    "|",
]
AMBIGUOUS += [
    "<<",
    "=",
    "a:",
    "true",
    "No",
    "NaN",
    ".nan",
    "é",
    "a\nb",
    "a\n",
    "\ta",
    "\x07",
    "\u2028",
]


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_our_job_files_come_back(file: Path) -> None:
    value = document.parse(file.read_text()).value
    assert isinstance(value, dict)
    stored = json.loads(json.dumps(value))  # as OpenPAI sends it
    assert to_document(stored, None, "job").value == stored


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_a_text_stays_a_text(text: str) -> None:
    value = {"name": "one", "parameters": {"a": text, "l": [text]}}
    written = to_text(value)
    assert yaml.safe_load(written) == value
    assert document.parse(written).value == value


def test_commands_stay_readable() -> None:
    text = to_text({"commands": ["echo one\nif true; then\n  echo two\nfi\n"]})
    assert text == "commands:\n- |\n  echo one\n  if true; then\n    echo two\n  fi\n"


def test_masked_secrets_are_asked_for() -> None:
    stored = {"name": "one", "secrets": "******"}
    with pytest.raises(ConfigurationError, match="masks the secrets of job 'one': give them with"):
        to_document(stored, None, "job 'one'")
    assert to_document(stored, {"a": "b"}, "job 'one'").value == {
        "name": "one",
        "secrets": {"a": "b"},
    }


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=30),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.fuzz
@given(st.dictionaries(st.text(max_size=8), values, max_size=4))
def test_any_stored_file_comes_back_or_is_refused(stored: dict[str, Any]) -> None:
    try:
        found = to_document(stored, {}, "the job")
    except ConfigurationError:
        return
    assert found.value == {**stored, "secrets": {}}

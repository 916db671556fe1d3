"""Texts for a person."""

import pytest

from ggs.errors import ConfigurationError
from ggs.text import name_and_value, one_line, shorten


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [("", 5, ""), ("12345", 5, "12345"), ("123456", 5, "12..."), ("123456", 3, "...")],
)
def test_shorten_keeps_what_fits(text: str, limit: int, expected: str) -> None:
    assert shorten(text, limit) == expected


def test_an_error_is_one_line() -> None:
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(KeyError()) == "KeyError"
    assert one_line(ValueError("x" * 20), 10) == "xxxxxxx..."


def test_name_and_value() -> None:
    assert name_and_value("a=b=c", "--set") == ("a", "b=c")
    assert name_and_value("a=", "--set") == ("a", "")
    for wrong in ("a", "=b", ""):
        with pytest.raises(ConfigurationError, match=r"^--set .*: write NAME=VALUE$"):
            name_and_value(wrong, "--set")

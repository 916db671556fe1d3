"""Scalars as OpenPAI's YAML reader, js-yaml 3, reads and JavaScript writes them.

`yes` is text, `012` is 10, `1:30` is 90; js-yaml 4 (of OpenPAI's successor LTP) and PyYAML read some of
them otherwise.
"""

from __future__ import annotations

import datetime
import math
import re

YAML_1_1_BOOLEANS = re.compile(r"yes|no|on|off", re.IGNORECASE)
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
_INTEGER = re.compile(
    r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]+|0|[1-9][0-9_]*(?::[0-5]?[0-9])*)(?<!_)"
)
_FLOAT = re.compile(
    r"[-+]?(?:0|[1-9][0-9_]*)(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9_]+(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2}(?:(?:[Tt]|[ \t]+)\d{1,2}:\d{2}:\d{2}.*)?")
# Scalars that js-yaml 3 and js-yaml 4 read differently.
VERSION_DEPENDENT = re.compile(r"[-+]?(?:0[0-9_]+|0o[0-7]+|[0-9][0-9_]*(?::[0-5]?[0-9])+.*)")

PATTERNS = {
    "null": _NULL,
    "bool": _BOOLEAN,
    "int": _INTEGER,
    "float": _FLOAT,
    "timestamp": _TIMESTAMP,
    "merge": re.compile("<<"),
}
"""By YAML tag, the unquoted texts that have it; every other one is text."""


def plain_scalar(text: str) -> object:
    """What the server reads where `text` is the whole of an unquoted scalar."""
    tag = next((tag for tag, pattern in PATTERNS.items() if pattern.fullmatch(text)), "str")
    try:
        return construct(tag, text)
    except ValueError:
        return text


def construct(tag: str, text: str) -> object:
    """One scalar as JavaScript's value: whole floats are integers. KeyError: an unknown tag."""
    if tag == "int":
        return _integer(text)
    if tag == "float":
        return _float(text)
    if tag == "timestamp":
        return datetime.date.fromisoformat(text[:10])
    return {"str": text, "null": None, "bool": text.lower() == "true", "merge": text}[tag]


def _integer(text: str) -> int:
    digits = text.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    if ":" in digits:
        value = _sexagesimal(digits)
        if not math.isfinite(value):
            raise ValueError(text)
        return sign * int(value)
    bases = {"0b": 2, "0x": 16, "0": 8} if digits != "0" else {}
    prefix = next(filter(digits.startswith, bases), "")
    number = int(digits.removeprefix(prefix), bases.get(prefix, 10))
    if number.bit_length() > 1024:  # beyond a JavaScript number
        raise ValueError(text)
    return sign * number


def _float(text: str) -> int | float:
    digits = text.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    value = _sexagesimal(digits) if ":" in digits else float(digits.replace(".inf", "inf"))
    return int(sign * value) if value.is_integer() else sign * value


def _sexagesimal(digits: str) -> float:
    value = 0.0
    for part in digits.split(":"):
        value = value * 60 + float(part)
    return value


def to_text(value: object) -> str:
    """`value` as JavaScript writes it when the server puts it into a string."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join("" if item is None else to_text(item) for item in value)
    if isinstance(value, dict):
        return "[object Object]"
    if isinstance(value, float):
        return repr(value).replace("nan", "NaN").replace("inf", "Infinity")
    return str(value)

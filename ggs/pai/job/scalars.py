"""Scalars as OpenPAI's YAML reader, js-yaml 3, reads and JavaScript writes them.

`yes` is text, `012` is 10, `1:30` is 90; js-yaml 4 (of OpenPAI's successor LTP) and PyYAML read some of
them otherwise.
"""

from __future__ import annotations

import datetime
import math
import re
from decimal import Decimal
from typing import Literal

Reader = Literal["openpai", "ltp"]
"""Who reads: OpenPAI 1.8.1's js-yaml 3, or LTP's js-yaml 4."""

YAML_1_1_BOOLEANS = re.compile(r"yes|no|on|off", re.IGNORECASE)
# Scalars that js-yaml 3 and js-yaml 4 read differently.
VERSION_DEPENDENT = re.compile(r"[-+]?(?:0[0-9_]+|0o[0-7]+|[0-9][0-9_]*(?::[0-5]?[0-9])+.*)")

_SPECIAL_FLOAT = r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_COMMON = {
    "null": re.compile(r"~|null|Null|NULL|"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "timestamp": re.compile(
        r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
        r"|(?P<year_>\d{4})-(?P<month_>\d\d?)-(?P<day_>\d\d?)(?:[Tt]|[ \t]+)"
        r"(?P<hour>\d\d?):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d*))?"
        r"(?:[ \t]*(?:Z|(?P<sign>[-+])(?P<zone_hour>\d\d?)(?::(?P<zone_minute>\d\d))?))?",
        re.ASCII,
    ),
    "merge": re.compile("<<"),
}
_PATTERNS: dict[Reader, dict[str, re.Pattern[str]]] = {
    "openpai": {
        **_COMMON,
        "int": re.compile(
            r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]+|0|[1-9][0-9_]*(?::[0-5]?[0-9])*)(?<!_)"
        ),
        "float": re.compile(
            r"(?:[-+]?(?:0|[1-9][0-9_]*)(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?"
            r"|\.[0-9_]+(?:[eE][-+]?[0-9]+)?"
            rf"|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*|{_SPECIAL_FLOAT})(?<!_)"
        ),
    },
    "ltp": {
        **_COMMON,
        "int": re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0o[0-7_]+|[0-9][0-9_]*)(?<!_)"),
        "float": re.compile(
            r"(?:[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?"
            rf"|\.[0-9_]+(?:[eE][-+]?[0-9]+)?|{_SPECIAL_FLOAT})(?<!_)"
        ),
    },
}
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = (
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
)  # fmt: skip
_BASES: dict[Reader, dict[str, int]] = {
    "openpai": {"0b": 2, "0x": 16, "0": 8},
    "ltp": {"0b": 2, "0x": 16, "0o": 8},
}


def implicit_tag(text: str, reader: Reader = "openpai") -> str:
    """The YAML tag of an unquoted scalar; `str` where nothing else fits."""
    patterns = _PATTERNS[reader]
    return next((tag for tag, pattern in patterns.items() if pattern.fullmatch(text)), "str")


def plain_scalar(text: str) -> object:
    """What the server reads where `text` is the whole of an unquoted scalar."""
    try:
        return construct(implicit_tag(text), text)
    except ValueError:
        return text


def construct(tag: str, text: str, reader: Reader = "openpai") -> object:
    """One scalar as JavaScript's value: whole floats are integers, a date is a moment in UTC.

    KeyError: an unknown tag. ValueError: the text does not fit the tag.
    """
    if tag in ("int", "float", "timestamp", "bool", "null"):
        fits = _PATTERNS[reader][tag].fullmatch(text)
        if fits is None and not (tag == "float" and _PATTERNS[reader]["int"].fullmatch(text)):
            raise ValueError(text)
        if tag == "int":
            return _integer(text, reader)
        if tag == "float":
            return _float(text)
        if tag == "timestamp":
            assert fits
            return _moment(fits)
    return {"str": text, "null": None, "bool": text.lower() == "true", "merge": text}[tag]


def _integer(text: str, reader: Reader) -> int:
    digits = text.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    if ":" in digits:
        value = _sexagesimal(digits)
        if not math.isfinite(value):
            raise ValueError(text)
        return sign * int(value)
    bases = _BASES[reader] if digits != "0" else {}
    prefix = next(filter(digits.startswith, bases), "")
    number = int(digits.removeprefix(prefix), bases.get(prefix, 10))
    if number.bit_length() > 1024:  # beyond a JavaScript number
        raise ValueError(text)
    return sign * number


def _float(text: str) -> int | float:
    digits = text.replace("_", "").lower()
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    special = digits.replace(".inf", "inf").replace(".nan", "nan")
    value = _sexagesimal(digits) if ":" in digits else float(special)
    return int(sign * value) if value.is_integer() else sign * value


def _sexagesimal(digits: str) -> float:
    value = 0.0
    for part in digits.split(":"):
        value = value * 60 + float(part)
    return value


def _moment(match: re.Match[str]) -> datetime.datetime:
    """A YAML timestamp as JavaScript's Date.UTC reads it: month 13 is next year's January."""
    parts = {name.rstrip("_"): text for name, text in match.groupdict().items() if text}
    year, month, day = (int(parts[name]) for name in ("year", "month", "day"))
    year += (1900 if year < 100 else 0) + (month - 1) // 12
    zone = datetime.timedelta(
        hours=int(parts.get("zone_hour", 0)), minutes=int(parts.get("zone_minute", 0))
    )
    since = datetime.timedelta(
        days=day - 1,
        hours=int(parts.get("hour", 0)),
        minutes=int(parts.get("minute", 0)),
        seconds=int(parts.get("second", 0)),
        milliseconds=int(parts.get("fraction", "0")[:3].ljust(3, "0")),
    )
    try:
        start = datetime.datetime(year, (month - 1) % 12 + 1, 1, tzinfo=datetime.timezone.utc)
        return start + since - (-zone if parts.get("sign") == "-" else zone)
    except OverflowError:
        raise ValueError(match[0]) from None


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
    if isinstance(value, (int, float)):
        return _number_text(value)
    if isinstance(value, datetime.datetime):
        # As JavaScript's Date writes itself in UTC, the server's zone, whatever this machine's language.
        day, month = _DAYS[value.weekday()], _MONTHS[value.month - 1]
        date = f"{day} {month} {value.day:02} {value.year:04}"
        return f"{date} {value:%H:%M:%S} GMT+0000 (Coordinated Universal Time)"
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value)


def _number_text(value: int | float) -> str:
    """A number as ECMAScript's Number::toString writes it: the fewest digits, no dot where none is needed."""
    number = float(value)
    if not math.isfinite(number):
        return repr(number).replace("nan", "NaN").replace("inf", "Infinity")
    _, digits_, exponent = Decimal(repr(abs(number))).normalize().as_tuple()
    assert isinstance(exponent, int)
    digits = "".join(map(str, digits_))
    point = len(digits) + exponent
    minus = "-" if number < 0 else ""
    if number == 0:
        return "0"
    if len(digits) <= point <= 21:
        return minus + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{minus}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{minus}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{minus}{digits[0]}{fraction}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def to_truth(value: object) -> bool:
    """What JavaScript takes `value` for where it asks yes or no: empty lists and mappings are yes."""
    if isinstance(value, float) and math.isnan(value):
        return False
    return isinstance(value, (dict, list)) or bool(value)

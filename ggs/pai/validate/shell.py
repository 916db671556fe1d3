"""As much of bash as is needed to see which variables a command uses and sets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Set by bash, by every container, or by any image that can run Python.
ALWAYS_SET = frozenset(
    (
        *(
            "PATH",
            "HOME",
            "PWD",
            "OLDPWD",
            "HOSTNAME",
            "SHLVL",
            "IFS",
            "UID",
            "EUID",
            "PPID",
            "SHELL",
        ),
        *("BASH", "BASHPID", "BASH_VERSION", "BASH_SOURCE", "BASHOPTS", "SHELLOPTS", "FUNCNAME"),
        *("RANDOM", "SECONDS", "LINENO", "EPOCHSECONDS", "EPOCHREALTIME", "PIPESTATUS", "OPTIND"),
        *("OSTYPE", "HOSTTYPE", "MACHTYPE"),
    )
)

_REFERENCE = re.compile(r"<%[\s\S]*?(?:%>|\Z)")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# `${X:-…}`, `${X-…}`, `${X+…}`, `${X:=…}` and `${X?…}` say what happens without a value.
_USE = re.compile(
    rf"\$(?:(?P<plain>{_NAME})|\{{[#!]?(?P<braced>{_NAME})(?P<rest>[^}}]{{0,200}})\}})"
)
_SET = re.compile(
    rf"(?:^|[\s;&|(])(?:(?:export|declare|local|readonly|typeset)\s+(?:-\w+\s+){{0,8}})?"
    rf"(?P<assigned>{_NAME})\+?="
    rf"|\bfor\s+(?P<loop>{_NAME})\b"
    rf"|\bread\s+(?:-\w+\s+){{0,8}}(?P<read>{_NAME}(?:\s+{_NAME})*)"
    rf"|\bprintf\s+-v\s+(?P<printf>{_NAME})"
    rf"|\$\{{(?P<default>{_NAME}):?="
    rf"|\b(?:mapfile|readarray)\s+(?:-\w+\s+){{0,8}}(?P<array>{_NAME})"
)
_HAS_DEFAULT = re.compile(r":?[-+=?]|[@*]\}?$")
_WORD = re.compile(r"[^\s;&|]*")
_QUOTED_WORD = re.compile(r'"[^"]*"')
# After these anything may be set, or unset variables are allowed.
_OPENS = re.compile(r"(?:^|[\s;&|(])(?:source|\.|eval|set\s+\+u|set\s+\+o\s+nounset)(?:\s|$)")


@dataclass(frozen=True)
class Scanned:
    """A command as bash sees it: `text` has its length, with references of the template engine
    as words, and with comments, single-quoted text and escaped characters blanked out."""

    text: str
    comment: bool


def scan(command: str) -> Scanned:
    """Read quotes, escapes and comments."""
    command = _REFERENCE.sub(lambda match: "x" * len(match[0]), command)
    out: list[str] = []
    quote = ""
    comment = False
    index = 0
    while index < len(command):
        character = command[index]
        if quote == "'":
            quote = "" if character == "'" else quote
            out.append(" ")
        elif character == "\\":
            out.append("  "[: len(command) - index])
            index += 1
        elif character == "'" and quote != '"':
            quote = "'"
            out.append(" ")
        elif character == '"':
            quote = "" if quote == '"' else '"'
            out.append(character)
        elif character == "#" and not quote and (index == 0 or command[index - 1] in " \t\n;"):
            comment = True
            end = command.find("\n", index)
            end = len(command) if end < 0 else end
            out.append(" " * (end - index))
            index = end - 1
        else:
            out.append(character)
        index += 1
    return Scanned("".join(out), comment)


def unquoted(command: str) -> str:
    """What `scan` leaves, with double-quoted text blanked out as well."""
    return re.sub(r'"[^"]*"', lambda match: " " * len(match[0]), scan(command).text)


def unset(command: str, known: set[str]) -> list[str]:
    """Variables that `command` needs and nothing has set before; adds what it sets to `known`.

    `$X` and `${X}` need a value, `${X:-default}` and its kin do not.
    """
    text = scan(command).text
    events = [(start, False, name) for name, start in _assignments(text)]
    for match in _USE.finditer(text):
        if match["plain"] or not _HAS_DEFAULT.match(match["rest"]):
            events.append((match.start(), True, match["plain"] or match["braced"]))
    missing = []
    for _, used, name in sorted(events):
        if used and name not in known:
            missing.append(name)
        known.add(name)
    return missing


def _assignments(text: str) -> Iterator[tuple[str, int]]:
    """Variables that `text` gives a value, with the position from which they have it."""
    for match in _SET.finditer(text):
        for group, names in match.groupdict().items():
            end = match.end()
            if group == "assigned":  # X=$X needs X: the value comes first
                word = _QUOTED_WORD.match(text, end) or _WORD.match(text, end)
                end = word.end() if word else end
            yield from ((name, end) for name in (names or "").split())


def opens(command: str) -> bool:
    """Whether the command may set any variable, or allows unset ones."""
    return bool(_OPENS.search(unquoted(command)))

"""As much of bash as is needed to see which variables a command uses and sets."""

from __future__ import annotations

import re
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
_USE = re.compile(rf"\$(?:(?P<plain>{_NAME})|\{{[#!]?(?P<braced>{_NAME})(?P<rest>[^}}]*)\}})")
_SET = re.compile(
    rf"(?:^|[\s;&|(])(?:(?:export|declare|local|readonly|typeset)\s+(?:-\w+\s+)*)?"
    rf"(?P<assigned>{_NAME})\+?="
    rf"|\bfor\s+(?P<loop>{_NAME})\b"
    rf"|\bread\s+(?:-\w+\s+)*(?P<read>{_NAME}(?:\s+{_NAME})*)"
    rf"|\bprintf\s+-v\s+(?P<printf>{_NAME})"
    rf"|\$\{{(?P<default>{_NAME}):?="
    rf"|\b(?:mapfile|readarray)\s+(?:-\w+\s+)*(?P<array>{_NAME})"
)
# After these anything may be set, or unset variables are allowed.
_OPENS = re.compile(r"(?:^|[\s;&|(])(?:source|\.|eval|set\s+\+u|set\s+\+o\s+nounset)(?:\s|$)")


@dataclass(frozen=True)
class Use:
    """A variable that a command uses with no default."""

    name: str
    start: int


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


def uses(command: str) -> list[Use]:
    """Variables that the command needs: `$X` and `${X}`, but not `${X:-default}`."""
    found = []
    for match in _USE.finditer(scan(command).text):
        if match["plain"]:
            found.append(Use(match["plain"], match.start()))
        elif not re.match(r":?[-+=?]|[@*]\}?$", match["rest"]):
            found.append(Use(match["braced"], match.start()))
    return found


def assignments(command: str) -> list[tuple[str, int]]:
    """Variables that the command gives a value, with the position where it stands."""
    names = []
    for match in _SET.finditer(scan(command).text):
        for text in filter(None, match.groups()):
            names += [(name, match.start()) for name in text.split()]
    return names


def opens(command: str) -> bool:
    """Whether the command may set any variable, or allows unset ones."""
    return bool(_OPENS.search(unquoted(command)))

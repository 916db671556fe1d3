"""The list of all checks as a page: `python -m ggs.pai.validate.catalogue > docs/job-file-checks.md`."""

from __future__ import annotations

from ggs.pai.validate import RULES
from ggs.pai.validate.finding import Rule

_HEAD = """\
# What `pai job validate` checks

    pai job validate FILE...

reports every problem of a job file with its line, what OpenPAI would do with it, and the way out.
The exit code is 0 without errors (warnings are printed), 1 with at least one error, 2 for a file that
cannot be opened. An *error* is refused or cannot work; a *warning* works somewhere, or not for long.
A check marked *OpenPAI* or *LTP* concerns only OpenPAI 1.8.1 or its successor LTP.

This page is made from the checks themselves: `python -m ggs.pai.validate.catalogue`.
"""
# Headings of the modules that the checks stand in, in the page's order.
_HEADINGS = {
    "reading": "Reading the file",
    "schema": "The server's schema",
    "references": "Names",
    "roles": "Task roles and resources",
    "completion": "The end of a job, and retries",
    "images": "Images",
    "templates": "References",
    "secrets": "Secrets",
    "commands": "Commands",
    "shell_variables": "Variables in commands",
    "storages": "Extras and storages",
    "init_container": "The init container",
    "plugins": "Runtime plugins",
    "hived": "HiveD",
    "ltp": "LTP",
    "portal": "The web portal",
}


def markdown() -> str:
    """The page."""
    groups: dict[str, list[Rule]] = {module: [] for module in _HEADINGS}
    for item in RULES.values():
        module = item.check.__module__.rpartition(".")[2] if item.check else "reading"
        groups[module].append(item)
    parts = [_HEAD]
    for module, rules in groups.items():
        parts.append(f"\n## {_HEADINGS[module]}\n\n")
        parts.append("| check | | why | then | do |\n|---|---|---|---|---|\n")
        parts += [_row(item) for item in sorted(rules, key=lambda item: item.name)]
    return "".join(parts)


def _row(item: Rule) -> str:
    target = {"openpai": ", OpenPAI", "ltp": ", LTP", "both": ""}[item.target]
    cells = (f"`{item.name}`", item.severity + target, item.fact, item.consequence, item.fix)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    print(markdown(), end="")

"""The list of all checks as a page: `python -m ggs.pai.validate.catalogue > docs/job-file-checks.md`."""

from __future__ import annotations

from ggs.pai.validate import RULES
from ggs.pai.validate.behaviour import BEHAVIOURS
from ggs.pai.validate.finding import Rule

_HEAD = """\
# What `pai job validate` checks

    pai job validate [--target openpai|ltp] FILE...

reports every problem of a job file with its line, what OpenPAI would do with it, and the way out.
The exit code is 0 without errors (warnings are printed), 1 with at least one error, 2 for a file that
cannot be opened. An *error* is refused or cannot work; a *warning* works somewhere, or not for long.
A check marked *OpenPAI* or *LTP* concerns only OpenPAI 1.8.1 or its successor LTP; others may concern one
of them in some cases, and then say so. `--target` leaves out what only the other one minds. `pai job submit`
stops at an error of the system that the cluster has, and passes over a check that `--ignore CHECK` names.

This page is made from the checks themselves: `python -m ggs.pai.validate.catalogue`.
"""
_SYSTEMS = """
## What each system does

For each check: what OpenPAI 1.8.1 and LTP 1.5 do with a file that has the finding, what a cluster with the
HiveD scheduler does otherwise, and the source file that says so (`rest-server`, `database-controller`,
`webportal` and `k8s-job-exit-spec` are folders of microsoft/pai and microsoft/ltp-platform; `openpai-runtime`
is version 0.1.12). 202 means that the job is stored. *Counted*: each attempt counts towards `jobRetryCount`.

| check | OpenPAI 1.8.1 | LTP 1.5 | HiveD | source |
|---|---|---|---|---|
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
    parts.append(_SYSTEMS)
    for module, rules in groups.items():
        parts.append(f"| **{_HEADINGS[module]}** | | | | |\n")
        for item in sorted(rules, key=lambda item: item.name):
            parts.append(_cells(f"`{item.name}`", *BEHAVIOURS[item.name]))
    return "".join(parts)


def _row(item: Rule) -> str:
    target = {"openpai": ", OpenPAI", "ltp": ", LTP", "both": ""}[item.target]
    return _cells(f"`{item.name}`", item.severity + target, item.fact, item.consequence, item.fix)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    print(markdown(), end="")

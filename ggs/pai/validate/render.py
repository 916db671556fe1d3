"""Prints findings, for people on a terminal and for programs on a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ggs.pai.job.document import DocumentError, load
from ggs.pai.validate.finding import Finding, Target
from ggs.pai.validate.run_rules import refusal, validate

_STYLES = {"error": "bold red", "warning": "yellow"}


def show(file: Path, findings: Sequence[Finding], console: Console | None = None) -> int:
    """Print a file's findings; the exit code is 1 if there is an error among them, else 0.

    A pipe gets one finding a line, `FILE:LINE: severity: path: message [rule]; …`.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    for finding in findings:
        console.print(_block(file, finding) if console.is_terminal else _line(file, finding))
    errors = sum(finding.severity == "error" for finding in findings)
    console.print(_summary(file, errors, len(findings) - errors))
    return 1 if errors else 0


def report(
    files: Iterable[Path], *, target: Target = "both", console: Console | None = None
) -> int:
    """Print every finding of every file; the exit code says the worst.

    0: no errors (warnings are printed), 1: at least one error, 2: a file that cannot be opened.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    code = 0
    for file in files:
        try:
            findings = validate(load(file), target=target)
        except DocumentError as error:
            findings = [refusal(error)]
        except OSError as error:
            console.print(Text(f"{file}: cannot be read: {error.strerror}"))
            code = 2
            continue
        code = max(code, show(file, findings, console))
    return code


def _place(file: Path, finding: Finding) -> str:
    return f"{file}:{finding.line}"


def _severity(finding: Finding) -> str:
    """`error` for both systems; else also for which."""
    names = {"both": "", "openpai": " on OpenPAI 1.8.1", "ltp": " on LTP"}
    return finding.severity + names[finding.target]


def _line(file: Path, finding: Finding) -> Text:
    path = f"{finding.path}: " if finding.path else ""
    return Text(
        f"{_place(file, finding)}: {_severity(finding)}: {path}{finding.message} [{finding.rule}]; "
        f"then: {finding.consequence}; fix: {finding.fix}"
    )


def _block(file: Path, finding: Finding) -> Text:
    text = Text(f"{_place(file, finding)}  ", style="bold")
    text.append(_severity(finding), style=_STYLES[finding.severity])
    if finding.path:
        text.append(f"  {finding.path}", style="cyan")
    text.append(f"\n  {finding.message}", style="not bold")
    text.append(f"  [{finding.rule}]", style="not bold dim")
    text.append(f"\n  Then: {finding.consequence}\n  Fix: {finding.fix}\n", style="not bold")
    return text


def _summary(file: Path, errors: int, warnings: int) -> Text:
    if not errors and not warnings:
        return Text(f"{file}: no problems", style="green")
    counts = (_count(errors, "error"), _count(warnings, "warning"))
    return Text(f"{file}: {', '.join(filter(None, counts))}", style="bold")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}" if number else ""

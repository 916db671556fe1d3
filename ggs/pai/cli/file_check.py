"""What the findings of a job file mean for sending it: which are printed, which stop it, and where."""

import difflib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import typer

from ggs.errors import ConfigurationError, ServerRefusedError
from ggs.pai.cli import terminal

if TYPE_CHECKING:
    from ggs.pai.client.rest import Client
    from ggs.pai.validate import Finding, Target

_NAMES = {"openpai": "OpenPAI 1.8.1", "ltp": "LTP"}


def parse_target(text: str | None) -> "Target | None":
    """The system of ``--target``. Raises ConfigurationError for another word."""
    if text not in (None, "both", *_NAMES):
        raise ConfigurationError(f"--target {text}: use openpai, ltp or both")
    return cast("Target | None", text)


@dataclass
class FileCheck:
    """How to take the findings of one file."""

    target: "Target | None" = None
    """Which system it is for; None: not known until a cluster is asked."""
    ignored: Sequence[str] = ()
    """Checks whose errors do not stop the file."""
    _doubtful: "list[tuple[str, Finding]]" = field(default_factory=list)

    def __post_init__(self) -> None:
        from ggs.pai.validate import RULES

        for name in self.ignored:
            if name not in RULES:
                close = difflib.get_close_matches(name, RULES, 1)
                hint = f"did you mean {close[0]}?" if close else "their names stand in brackets"
                raise ConfigurationError(f"--ignore {name}: there is no such check; {hint}")

    def report(self, source: str, findings: "Sequence[Finding]") -> None:
        """Print the findings; exits with 1 for an error, unless it is ignored or may be another system's."""
        stopped = False
        for finding in findings:
            path = f"{finding.path}: " if finding.path else ""
            where = "" if finding.target == "both" else f"on {_NAMES[finding.target]}, "
            message = f"{source}:{finding.line}: {path}{where}{finding.message}: {finding.fix}"
            message += f" [{finding.rule}]"
            if finding.severity == "warning":
                terminal.warn(message)
            elif finding.rule in self.ignored:
                terminal.warn(f"{message} (ignored)")
            elif finding.target != "both" and self.target is None:
                self._doubtful.append((message, finding))
                terminal.warn(message)
            else:
                stopped = True
                terminal.fail(message)
        if stopped:
            raise typer.Exit(1)

    def settle(self, client: "Client") -> None:
        """Exit with 1 where an error that only one system has is one of this cluster's."""
        system = system_of(client) if self._doubtful else None
        mine = [message for message, finding in self._doubtful if finding.target == system]
        for message in mine:
            terminal.fail(message)
        if mine:
            raise typer.Exit(1)


def system_of(client: "Client") -> "Target | None":
    """Which system a cluster runs: 1.8.1 answers 404 for a job that does not exist, LTP 500."""
    try:
        client.job(f"no-such-job-{uuid.uuid4().hex}")
    except ServerRefusedError as error:
        if error.code == "NoJobError":
            return "openpai" if error.status == 404 else "ltp"
    return None

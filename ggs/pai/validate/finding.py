"""What a check finds, and how checks are registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ggs.pai.job.document import Document, Path, format_path
from ggs.pai.job.model import Job, locate
from ggs.pai.job.stored import Damage, InitFailure, mask, masking_damage, read_in_container
from ggs.text import shorten

Severity = Literal["error", "warning"]
# `openpai` is OpenPAI 1.8.1, `ltp` its successor; a file for `both` must suit either.
Target = Literal["openpai", "ltp", "both"]


_MAX_MESSAGE = 300


@dataclass(frozen=True, order=True)
class Finding:
    """One problem of a job file."""

    line: int
    path: str
    rule: str
    severity: Severity
    message: str
    consequence: str
    fix: str
    target: Target = "both"
    """Which system minds."""


@dataclass(frozen=True)
class Violation:
    """What a rule yields: where and what is wrong, and texts for this case if need be.

    `line` is for what has another line than the value at `path`: 0 takes that one's. `target` says which
    system minds, where that is not the same in all cases of the rule.
    """

    path: Path
    message: str
    fix: str = ""
    consequence: str = ""
    line: int = 0
    target: Target | None = None


@dataclass(frozen=True)
class Rule:
    """A check and what it is for; `fact` says why OpenPAI minds.

    `check` is None for what shows while the text is read, before there is a job to check.
    """

    name: str
    severity: Severity
    target: Target
    consequence: str
    fix: str
    fact: str
    check: Callable[[JobView], Iterator[Violation]] | None = None

    def finding(self, violation: Violation, line: int) -> Finding:
        """`violation` with this rule's texts where it brings none of its own."""
        return Finding(
            line,
            format_path(violation.path),
            self.name,
            self.severity,
            shorten(violation.message, _MAX_MESSAGE),
            violation.consequence or self.consequence,
            violation.fix or self.fix,
            violation.target or self.target,
        )


RULES: dict[str, Rule] = {}

Check = Callable[["JobView"], Iterator[Violation]]


def rule(
    name: str,
    severity: Severity,
    *,
    consequence: str,
    fix: str,
    target: Target = "both",
) -> Callable[[Check], Check]:
    """Register a check. Its docstring is the fact behind it, and goes into the documentation."""

    def register(check: Check) -> Check:
        assert name not in RULES
        assert check.__doc__
        fact = " ".join(check.__doc__.split())
        RULES[name] = Rule(name, severity, target, consequence, fix, fact, check)
        return check

    return register


class JobView:
    """A job file's values for checks, however broken the file is: wrong types read as absent."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.roles = self._mappings("taskRoles")
        self.parameters = self.mapping("parameters")
        self.secrets = self.mapping("secrets")
        self.extras = self.mapping("extras")
        self.prerequisites = self.items("prerequisites")
        self.deployments = self.items("deployments")

    @cached_property
    def in_container(self) -> object:
        """The file as the init container reads it, or the failure that comes of it."""
        try:
            return read_in_container(mask(self.document.text))
        except InitFailure as failure:
            return failure

    @cached_property
    def masking_damage(self) -> Damage | None:
        """What goes wrong when OpenPAI masks the file's secrets."""
        return masking_damage(self.document)

    @cached_property
    def ltp_refusals(self) -> list[tuple[Path, ErrorDetails]]:
        """As `refusals`, for the values that LTP's reader finds."""
        value = self.document.read_as("ltp")
        return self.refusals if value is self.document.value else self._refusals(value)

    @cached_property
    def refusals(self) -> list[tuple[Path, ErrorDetails]]:
        """All complaints of the typed model with their paths; of several at one path the first."""
        return self._refusals(self.document.value)

    def _refusals(self, value: object) -> list[tuple[Path, ErrorDetails]]:
        try:
            Job.model_validate(value)
        except ValidationError as error:
            by_path: dict[Path, ErrorDetails] = {}
            for details in error.errors(include_url=False):
                by_path.setdefault(locate(details, self.document)[0], details)
            return list(by_path.items())
        return []

    def mapping(self, *path: str | int) -> dict[str, object]:
        """The mapping at `path`, or an empty one."""
        value = self.document.get(*path)
        return value if isinstance(value, dict) else {}

    def sequence(self, *path: str | int) -> list[object]:
        """The list at `path`, or an empty one."""
        value = self.document.get(*path)
        return value if isinstance(value, list) else []

    def integer(self, *path: str | int) -> int | None:
        """The integer at `path`, or None."""
        value = self.document.get(*path)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, *path: str | int) -> str | None:
        """The text at `path`, or None."""
        value = self.document.get(*path)
        return value if isinstance(value, str) else None

    def items(self, *path: str | int) -> list[tuple[Path, dict[str, object]]]:
        """The mappings in the list at `path`, with their paths."""
        return [
            ((*path, index), item)
            for index, item in enumerate(self.sequence(*path))
            if isinstance(item, dict)
        ]

    def instances(self, role: str) -> int:
        """How many tasks a role has; 1 where the file does not say."""
        return max(self.integer("taskRoles", role, "instances") or 1, 1)

    @property
    def tasks(self) -> int:
        """Tasks of all roles."""
        return sum(self.instances(role) for role in self.roles)

    def gpus(self, role: str) -> int:
        """GPUs that one task of a role asks for."""
        return max(self.integer("taskRoles", role, "resourcePerInstance", "gpu") or 0, 0)

    @property
    def gang(self) -> bool:
        """Whether all tasks start, fail and are retried together."""
        return self.extras.get("gangAllocation") is not False

    def commands(self, role: str) -> list[tuple[Path, str]]:
        """What a task runs, in order: the deployment in use around the role's own commands."""
        commands = self._texts("taskRoles", role, "commands")
        name = self.text("defaults", "deployment")
        for path, deployment in self.deployments:
            if name is not None and deployment.get("name") == name:
                before = self._texts(*path, "taskRoles", role, "preCommands")
                after = self._texts(*path, "taskRoles", role, "postCommands")
                return [*before, *commands, *after]
        return commands

    def plugins(self) -> list[tuple[Path, dict[str, object]]]:
        """The runtime plugins under `extras`."""
        return self.items("extras", "com.microsoft.pai.runtimeplugin")

    def _texts(self, *path: str | int) -> list[tuple[Path, str]]:
        return [
            ((*path, index), item)
            for index, item in enumerate(self.sequence(*path))
            if isinstance(item, str)
        ]

    def _mappings(self, *path: str | int) -> dict[str, dict[str, object]]:
        return {key: item for key, item in self.mapping(*path).items() if isinstance(item, dict)}

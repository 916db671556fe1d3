"""Runs the rules over a text."""

from __future__ import annotations

from collections.abc import Iterator

from ggs.pai.job.document import Document, DocumentError, parse
from ggs.pai.validate import (  # noqa: F401  imported for the rules that they register
    commands,
    completion,
    hived,
    images,
    init_container,
    ltp,
    plugins,
    portal,
    reading,
    references,
    roles,
    schema,
    secrets,
    shell_variables,
    storages,
    templates,
)
from ggs.pai.validate.finding import RULES, Finding, JobView, Target, Violation


def validate(job: Document | str, *, target: Target = "both") -> list[Finding]:
    """All problems of a job file, parsed or as text, in the order of its lines.

    `target`: the cluster that the file is meant for; `both` reports what either minds.
    """
    try:
        view = JobView(parse(job) if isinstance(job, str) else job)
    except DocumentError as error:
        return [refusal(error)]
    return sorted(set(_findings(view, target)))


def refusal(error: DocumentError) -> Finding:
    """The one finding of a text that could not be read."""
    return RULES[error.rule].finding(Violation((), error.message), error.line)


def _findings(view: JobView, target: Target) -> Iterator[Finding]:
    for item in RULES.values():
        if item.check is None:
            continue
        for problem in item.check(view):
            found = item.finding(problem, problem.line or view.document.line(problem.path))
            if "both" in (target, found.target) or target == found.target:
                yield found

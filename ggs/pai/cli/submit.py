"""What ``pai job submit`` does between reading the file and printing the job's page."""

import sys
from collections.abc import Mapping
from pathlib import Path

import typer

from ggs.errors import ConfigurationError, ServerRefusedError
from ggs.pai.cli import terminal
from ggs.pai.client import submission
from ggs.pai.client.rest import Client
from ggs.pai.client.submission import Submission
from ggs.pai.job.document import Document, DocumentError, load
from ggs.pai.job.edit import edit


def read_checked(file: Path, parameters: Mapping[str, str], name: str | None) -> Document:
    """The file, changed as asked. Prints what ``pai job validate`` would say; exits with 1 for an error."""
    from ggs.pai.validate import refusal, validate

    try:
        document = edit(load(file), parameters, name)
        findings = validate(document)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from None
    except DocumentError as error:
        findings = [refusal(error)]
    for finding in findings:
        path = f"{finding.path}: " if finding.path else ""
        message = f"{file}:{finding.line}: {path}{finding.message}: {finding.fix}"
        (terminal.fail if finding.severity == "error" else terminal.warn)(message)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)
    return document


def submit_under_a_free_name(client: Client, job: Submission) -> tuple[Submission, str]:
    """Submit; where the name is taken, a person at a terminal may choose another one."""
    client.hide(*job.secrets)
    while True:
        try:
            return job, client.submit(job.name, job.document.text)
        except ServerRefusedError as error:
            if error.code != "ConflictJobError":
                raise
            free = client.free_name(job.name)
            if not sys.stdin.isatty():
                raise ServerRefusedError(
                    f"{error}; free is --name {free}", error.status, error.code
                ) from None
            terminal.warn(str(error))
        try:
            name = typer.prompt("New name", default=free, err=True)
            job = submission.prepare(edit(job.document, {}, name))
        except ConfigurationError as error:
            terminal.warn(str(error))

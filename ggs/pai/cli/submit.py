"""What ``pai job submit`` does between reading the file and printing the job's page."""

import sys

import typer

from ggs.errors import ConfigurationError, ServerRefusedError
from ggs.pai.cli import terminal
from ggs.pai.client import submission
from ggs.pai.client.client import Client
from ggs.pai.client.submission import Submission


def check(text: str, where: str) -> None:
    """Print what ``pai job validate`` would say; exit with 1 if there is an error."""
    from ggs.pai.validate import validate

    findings = validate(text)
    for finding in findings:
        message = f"{where}:{finding.line}: {finding.path}: {finding.message}: {finding.fix}"
        (terminal.fail if finding.severity == "error" else terminal.warn)(message)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(1)


def submit_under_a_free_name(client: Client, job: Submission) -> tuple[Submission, str]:
    """Submit; where the name is taken, a person at a terminal may choose another one."""
    client.hide(*job.secrets)
    while True:
        try:
            return job, client.submit(job.name, job.text)
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
            job = submission.prepare(submission.edit(job.text, {}, name))
        except ConfigurationError as error:
            terminal.warn(str(error))

"""What ``pai job submit`` does between reading the file and printing the job's page."""

import sys
from collections.abc import Mapping
from pathlib import Path

import typer

from ggs.errors import ConfigurationError, ServerRefusedError
from ggs.pai.cli import terminal
from ggs.pai.cli.file_check import FileCheck
from ggs.pai.client import submission
from ggs.pai.client.rest import Client
from ggs.pai.client.submission import Submission
from ggs.pai.job.document import Document, DocumentError, load
from ggs.pai.job.edit import edit


def read_checked(
    file: Path, parameters: Mapping[str, str], name: str | None, checked: FileCheck
) -> Document:
    """The file, changed as asked. Prints what ``pai job validate`` would say; exits with 1 for an error."""
    from ggs.pai.validate import refusal

    try:
        document = edit(load(file), parameters, name)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from None
    except DocumentError as error:
        checked.report(str(file), [refusal(error)])
        raise ConfigurationError(f"{error}; a file that cannot be read cannot be sent") from None
    return check(document, str(file), checked)


def check(document: Document, source: str, checked: FileCheck) -> Document:
    """Print what ``pai job validate`` would say of the document; exits with 1 for an error."""
    from ggs.pai.validate import validate

    checked.report(source, validate(document, target=checked.target or "both"))
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


def send(client: Client, job: Submission, cluster: str | None, as_json: bool) -> None:
    """Submit a job and print its page and how to follow it; ``cluster`` is the alias that was given."""
    job, outcome = submit_under_a_free_name(client, job)
    url = client.cluster.job_url(job.name)
    terminal.say(f"job {job.name!r} is {outcome}")
    if as_json:
        terminal.result_json(
            {
                "name": job.name,
                "user": client.cluster.user,
                "cluster": client.cluster.alias,
                "url": url,
                "outcome": outcome,
            }
        )
        return
    terminal.result(url)
    option = f" --cluster {client.cluster.alias}" if cluster else ""
    terminal.say(f"follow it:  pai job wait {job.name}{option}")
    terminal.say(f"read it:    pai job logs {job.name} --follow{option}")
    terminal.say(f"stop it:    pai job stop {job.name}{option}")


def show_dry_run(job: Submission, as_json: bool) -> None:
    """Print what would be sent, secrets masked."""
    if as_json:
        terminal.result_json({"name": job.name, "file": job.shown, "outcome": "nothing was sent"})
    else:
        terminal.result(job.shown.removesuffix("\n"))
    terminal.say(f"job {job.name!r}, {len(job.document.text.encode())} bytes; nothing was sent")

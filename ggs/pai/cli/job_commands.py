"""``pai job``: check, try, submit and follow jobs."""

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ggs.errors import ConfigurationError
from ggs.pai.cli import terminal
from ggs.pai.cli.options import (
    ClusterOption,
    DryRun,
    File,
    Ignored,
    Json,
    NewName,
    Settings,
    TargetOption,
    parse_settings,
)

if TYPE_CHECKING:
    from ggs.pai.job.document import Document

app = typer.Typer(no_args_is_help=True, help="Check, try, submit and follow jobs.")


@app.command()
def submit(
    file: File,
    cluster: ClusterOption = None,
    settings: Settings = None,
    name: NewName = None,
    target: TargetOption = None,
    ignored: Ignored = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Check a job file and submit it.

    Errors in the file stop it, warnings are printed. Prints the job's page and how to follow it.
    """
    from ggs.pai.cli.file_check import FileCheck, parse_target
    from ggs.pai.cli.submit import read_checked, send, show_dry_run
    from ggs.pai.client.submission import prepare

    checked = FileCheck(parse_target(target), ignored or ())
    job = prepare(read_checked(file, parse_settings(settings), name, checked))
    if dry_run:
        show_dry_run(job, as_json)
        return
    from ggs.pai.client.connect import connect

    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        checked.settle(client)
        send(client, job, cluster, as_json)


@app.command()
def validate(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Job files (protocol version 2).")
    ],
    target: TargetOption = None,
    as_json: Json = False,
) -> None:
    """Check job files.

    Reports everything that OpenPAI or LTP would refuse or get wrong, with the fix; --target leaves out what
    only the other one minds.

    Exit code: 0 no error (warnings may be printed), 1 a file has errors, 2 a file cannot be read.
    """
    from ggs.pai import validate as validation
    from ggs.pai.cli.file_check import parse_target

    system = parse_target(target) or "both"
    if as_json:
        from ggs.pai.cli.findings_as_json import report_as_json

        raise typer.Exit(report_as_json(files, system))
    raise typer.Exit(validation.report(files, target=system))


@app.command("run-local")
def run_local(
    file: File,
    engine: Annotated[
        str,
        typer.Option(
            metavar="docker|process",
            help="docker: a container per task; process: a process group per task.",
        ),
    ] = "docker",
    settings: Settings = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, help="GPUs of each task instead of the file's number.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the containers for a look.")] = False,
    kill: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE:INDEX@SECONDS", help="Kill a task, to try a failure."),
    ] = None,
    storage: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="The folder that stands for a storage."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="For logs and storages. [default: runs/local/JOB-TIME]")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the end as JSON, and the run on stderr.")
    ] = False,
) -> None:
    """Run a job on this machine as a cluster would.

    Exit code: 0 OpenPAI would call it SUCCEEDED, 1 FAILED or the file has errors that leave nothing
    to run, 2 an option is wrong or the file cannot be read.
    """
    from ggs.pai.local import LocalOptions, run
    from ggs.pai.local.options import EngineName

    options = LocalOptions(
        engine=cast(EngineName, engine),  # it checks
        gpus=gpus,
        keep=keep,
        kills=kill or [],
        storages=storage or [],
        folder=folder,
    )
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        document = _read_job(file, parse_settings(settings))
        code = run(document, options)
    if as_json:
        outcome = {0: "SUCCEEDED", 1: "FAILED"}.get(code)
        terminal.result_json({"name": document.get("name"), "outcome": outcome, "exit_code": code})
    raise typer.Exit(code)


def _read_job(file: Path, settings: dict[str, str]) -> "Document":
    """The file with its settings; reports and exits as ``pai job validate`` does where it is not a job.

    A job that only this machine can run is not stopped: what OpenPAI would refuse is noted as it starts.
    """
    from ggs.pai import validate as validation
    from ggs.pai.job.document import DocumentError, load
    from ggs.pai.job.edit import edit
    from ggs.pai.job.model import Job

    try:
        document = load(file)
    except (DocumentError, OSError):
        raise typer.Exit(validation.report([file], target="openpai")) from None
    try:
        changed = edit(document, settings)
        Job.from_document(changed)
    except ConfigurationError:
        findings = validation.validate(document, target="openpai")
        if not any(finding.severity == "error" for finding in findings):
            raise  # it is a matter of the settings
        raise typer.Exit(validation.show(file, findings)) from None
    return changed

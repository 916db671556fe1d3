"""``pai job``: check, try, submit and follow jobs."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ggs.errors import ConfigurationError
from ggs.pai.cli import terminal
from ggs.text import name_and_value

if TYPE_CHECKING:
    from ggs.pai.job.document import Document

app = typer.Typer(no_args_is_help=True, help="Check, try, submit and follow jobs.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="A job file (protocol version 2).")]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="NAME of your job, or USER~NAME.")]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", "-a", help="Alias. [default: PAI_CLUSTER, or the only one]"),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of the file; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the server's answer as JSON.")]


@app.command()
def submit(
    file: File,
    cluster: ClusterOption = None,
    settings: Settings = None,
    name: Annotated[str | None, typer.Option(help="Another name for the job.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be sent, and send nothing.")
    ] = False,
) -> None:
    """Check a job file and submit it.

    Errors in the file stop it, warnings are printed. Prints the job's page and how to follow it.
    """
    from ggs.pai.cli.submit import read_checked, submit_under_a_free_name
    from ggs.pai.client.submission import prepare

    document = read_checked(file, _parse_settings(settings), name)
    job = prepare(document)
    if dry_run:
        terminal.result(job.shown.removesuffix("\n"))
        terminal.say(f"job {job.name!r}, {len(document.text.encode())} bytes; nothing was sent")
        return
    from ggs.pai.client.connect import connect

    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        job, outcome = submit_under_a_free_name(client, job)
        option = f" --cluster {client.cluster.alias}" if cluster else ""
        terminal.say(f"job {job.name!r} is {outcome}")
        terminal.result(client.cluster.job_url(job.name))
    terminal.say(f"follow it:  pai job wait {job.name}{option}")
    terminal.say(f"read it:    pai job logs {job.name} --follow{option}")
    terminal.say(f"stop it:    pai job stop {job.name}{option}")


@app.command("list")
def list_jobs(
    cluster: ClusterOption = None,
    user: Annotated[str | None, typer.Option(help="Whose jobs. [default: yours]")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only in this state: WAITING, RUNNING, SUCCEEDED, …")
    ] = None,
    virtual_cluster: Annotated[str | None, typer.Option(help="Only in this one.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=5000, help="How many, newest first.")] = 20,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    from ggs.pai.client.connect import connect
    from ggs.pai.client.responses import clean

    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        jobs = client.jobs(
            user,
            state=state.upper() if state else None,
            virtual_cluster=virtual_cluster,
            limit=limit,
        )
    if as_json:
        terminal.result(json.dumps(jobs, indent=2))
        return
    keys = ("state", "virtualCluster", "totalTaskNumber", "totalGpuNumber", "retries")
    terminal.table(
        ("NAME", "STATE", "VC", "TASKS", "GPUS", "RETRIES", "SUBMITTED"),
        [
            [clean(str(job.get(key)), 60) for key in ("name", *keys)]
            + [terminal.when(job.get("submissionTime"))]
            for job in jobs
        ],
    )


@app.command()
def status(
    job: JobName,
    cluster: ClusterOption = None,
    attempt: Annotated[int | None, typer.Option(min=0, help="An earlier attempt.")] = None,
    as_json: Json = False,
) -> None:
    """Show the state of a job and of its tasks."""
    from ggs.pai.client.connect import connect
    from ggs.pai.client.responses import clean
    from ggs.pai.client.status import read

    user, name = _user_and_name(job)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        answer = client.job(name, user, attempt)
        url = client.cluster.job_url(name, user)
    if as_json:
        terminal.result(json.dumps(answer, indent=2))
        return
    state = read(answer)
    terminal.result(f"{name}: {state.summary()}")
    if state.reason():
        terminal.result(f"reason: {state.reason()}")
    terminal.result(
        f"submitted {terminal.when(state.job_status.submission_time)}, "
        f"started {terminal.when(state.job_status.launched_time)}, "
        f"ended {terminal.when(state.job_status.completed_time)}"
    )
    terminal.result(url)
    rows = [
        [f"{role}:{task.task_index}", clean(task.task_state, 20), task.container_exit_code]
        + [
            clean(text, 60) if text else None
            for text in (task.container_ip, task.container_node_name)
        ]
        for role, task in state.tasks
    ]
    if rows:
        terminal.table(("TASK", "STATE", "EXIT", "ADDRESS", "NODE"), rows)


@app.command()
def logs(
    job: JobName,
    cluster: ClusterOption = None,
    role: Annotated[str | None, typer.Option(help="Only this role's tasks.")] = None,
    task: Annotated[int | None, typer.Option(min=0, help="Only tasks of this index.")] = None,
    kind: Annotated[
        str, typer.Option(help="all, stdout, stderr, or another log that the cluster keeps.")
    ] = "all",
    attempt: Annotated[int | None, typer.Option(min=0, help="An earlier attempt.")] = None,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Begin with this many of the last lines.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0, help="Follow for at most this many hours.")
    ] = 168,
) -> None:
    """Print the logs of a job's tasks.

    Each line begins with its task where there are several.
    """
    from ggs.pai.client import logs as task_logs
    from ggs.pai.client.connect import connect

    user, name = _user_and_name(job)
    if follow and attempt is not None:
        raise ConfigurationError("--follow shows the newest attempt: leave out --attempt")
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        chosen = task_logs.select(client, name, user, role, task, kind, attempt)
        printer = task_logs.Printer(sys.stdout.buffer, labels=len(chosen) > 1)
        for log in chosen:
            if tail is not None:
                printer.show(log, log.tail(client, tail))
            elif not follow:
                for part in log.read(client):
                    printer.show(log, part)
        if follow:
            task_logs.follow(client, name, user, chosen, printer.show, timeout * 3600)
        printer.finish()
        if not follow and not printer.shown:
            terminal.say("no output yet")


@app.command()
def wait(
    job: JobName,
    cluster: ClusterOption = None,
    timeout: Annotated[float, typer.Option(min=0, help="Give up after this many hours.")] = 168,
    unchanged: Annotated[
        float, typer.Option(min=0, help="Give up after this many hours of unchanged WAITING.")
    ] = 24,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between questions.")] = 10,
) -> None:
    """Wait for a job's end and show its progress.

    Exit code: 0 it succeeded, 1 it failed, 5 it was stopped, 6 it is stuck in WAITING, 124 the time
    is up; 3 and 4 as always: the server refuses, or gives no usable answer.
    """
    from ggs.pai.client.connect import connect
    from ggs.pai.client.wait import Outcome, WaitLimits
    from ggs.pai.client.wait import wait as wait_for

    user, name = _user_and_name(job)
    limits = WaitLimits(timeout * 3600, unchanged * 3600, interval=interval)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        outcome, _, reason = wait_for(client, name, user, limits, terminal.say)
    text = f"{name}: {outcome.name.replace('_', ' ').lower()}{': ' + reason if reason else ''}"
    (terminal.say if outcome is Outcome.SUCCEEDED else terminal.fail)(text)
    raise typer.Exit(outcome.value)


@app.command()
def stop(job: JobName, cluster: ClusterOption = None) -> None:
    """Stop a job.

    OpenPAI kills its tasks without a signal first: only what a checkpoint has is kept.
    """
    from ggs.pai.client.connect import connect

    user, name = _user_and_name(job)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        client.stop(name, user)
    terminal.say(f"{name} is being stopped")


@app.command()
def config(job: JobName, cluster: ClusterOption = None) -> None:
    """Print the file that a job was submitted with.

    OpenPAI has masked its secrets.
    """
    import yaml

    from ggs.pai.client.connect import connect

    user, name = _user_and_name(job)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        stored = client.config(name, user)
    terminal.result(yaml.safe_dump(stored, sort_keys=False, allow_unicode=True, width=100), end="")


@app.command()
def validate(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Job files (protocol version 2).")
    ],
) -> None:
    """Check job files.

    Reports everything that OpenPAI or LTP would refuse or get wrong, with the fix.

    Exit code: 0 no error (warnings may be printed), 1 a file has errors, 2 a file cannot be read.
    """
    from ggs.pai import validate as validation

    raise typer.Exit(validation.report(files))


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
    raise typer.Exit(run(_read_job(file, _parse_settings(settings)), options))


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


def _parse_settings(settings: list[str] | None) -> dict[str, str]:
    return dict(name_and_value(setting, "--set") for setting in settings or [])


def _user_and_name(job: str) -> tuple[str | None, str]:
    user, tilde, name = job.rpartition("~")
    if (tilde and not user) or not name:
        raise ConfigurationError(f"{job!r} is not a job: give NAME or USER~NAME")
    return user or None, name

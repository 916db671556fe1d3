"""``pai job logs`` and ``pai job wait``: a job followed to its end."""

import sys
from typing import Annotated

import typer

from ggs.errors import ConfigurationError
from ggs.pai.cli import terminal
from ggs.pai.cli.options import ClusterOption, JobName, Json, user_and_name

app = typer.Typer()


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
    as_json: Annotated[
        bool, typer.Option("--json", help='Print each line as {"task": …, "line": …}.')
    ] = False,
) -> None:
    """Print the logs of a job's tasks.

    Each line begins with its task where there are several.
    """
    from ggs.pai.client import logs as task_logs
    from ggs.pai.client.connect import connect

    user, name = user_and_name(job)
    if follow and attempt is not None:
        raise ConfigurationError("--follow shows the newest attempt: leave out --attempt")
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        choice = task_logs.Choice(role, task, kind)
        printer = task_logs.Printer(sys.stdout.buffer, as_json)
        ended = True
        if follow:
            limits = task_logs.FollowLimits(timeout * 3600)
            ended = task_logs.follow(
                client, name, user, choice, limits, printer.show, terminal.say, tail
            )
        else:
            chosen = task_logs.select(client, name, user, choice, attempt)
            for log in chosen:
                for part in log.read(client) if tail is None else [log.tail(client, tail)]:
                    printer.show(log, part, len(chosen))
        printer.finish()
    if not ended:
        terminal.fail(f"{name} has not ended after {timeout:g} h")
        raise typer.Exit(124)
    if not printer.shown:
        terminal.say("no output" if follow else "no output yet")


@app.command()
def wait(
    job: JobName,
    cluster: ClusterOption = None,
    timeout: Annotated[float, typer.Option(min=0, help="Give up after this many hours.")] = 168,
    unchanged: Annotated[
        float, typer.Option(min=0, help="Give up after this many hours of unchanged WAITING.")
    ] = 24,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between questions.")] = 10,
    as_json: Json = False,
) -> None:
    """Wait for a job's end and show its progress.

    Exit code: 0 it succeeded, 1 it failed, 5 it was stopped, 6 it is stuck in WAITING, 124 the time
    is up; 3 and 4 as always: the server refuses, or gives no usable answer.
    """
    from ggs.pai.client.connect import connect
    from ggs.pai.client.wait import Outcome, WaitLimits
    from ggs.pai.client.wait import wait as wait_for

    user, name = user_and_name(job)
    limits = WaitLimits(timeout * 3600, unchanged * 3600, interval=interval)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        outcome, state, reason = wait_for(client, name, user, limits, terminal.say)
    text = f"{name}: {outcome.name.replace('_', ' ').lower()}{': ' + reason if reason else ''}"
    (terminal.say if outcome is Outcome.SUCCEEDED else terminal.fail)(text)
    if as_json:
        terminal.result_json(
            {
                "name": name,
                "outcome": outcome.name,
                "state": state.state if state else None,
                "reason": reason,
            }
        )
    raise typer.Exit(outcome.value)

"""``pai job ssh``, ``attempts``, ``events``: a look into a job."""

from typing import Annotated

import typer

from ggs.errors import PAIError
from ggs.pai.cli import terminal
from ggs.pai.cli.options import ClusterOption, JobName, Json, user_and_name

app = typer.Typer()


@app.command()
def ssh(
    job: JobName,
    cluster: ClusterOption = None,
    task: Annotated[
        str | None, typer.Option(metavar="ROLE:INDEX", help="Only this task. [default: all]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the ssh commands of a job's tasks.

    One a line, of those that run. The job file has to ask for OpenPAI's ssh plugin, which takes the
    keys that it names.
    """
    from ggs.pai.client import job_facts
    from ggs.pai.client.connect import connect
    from ggs.pai.client.status import read

    user, name = user_and_name(job)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        state = read(client.job(name, user))
        config = job_facts.stored_file(client, name, user)
    if not job_facts.has_ssh(config):
        terminal.warn(
            f"the file of {name} does not ask for the ssh plugin: its tasks may not answer"
        )
    tasks = job_facts.tasks(state, config)
    if task is not None and task not in [item.task for item in tasks]:
        known = ", ".join(item.task for item in tasks) or "none yet"
        raise PAIError(f"job {name!r} has no task {task!r}; its tasks: {known}")
    open_ = {
        item.task: item.ssh
        for item in tasks
        if task in (None, item.task) and item.ssh and item.state == "RUNNING"
    }
    if not open_:
        raise PAIError(f"no task of job {name!r} runs ({state.summary()})")
    if as_json:
        terminal.result_json(open_)
        return
    for command in open_.values():
        terminal.result(command)


@app.command()
def attempts(job: JobName, cluster: ClusterOption = None, as_json: Json = False) -> None:
    """List the attempts of a job: how each ended, and why."""
    from ggs.pai.client import job_facts
    from ggs.pai.client.connect import connect
    from ggs.pai.client.responses import clean

    user, name = user_and_name(job)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        found = job_facts.attempts(client, name, user)
    if as_json:
        terminal.result_json(found)
        return
    terminal.table(
        ("ATTEMPT", "STATE", "EXIT", "REASON", "STARTED", "ENDED"),
        [
            [
                *(
                    item.get("attemptIndex"),
                    clean(str(item.get("state")), 20),
                    item.get("exitCode"),
                ),
                clean(item["exitPhrase"], 60) if isinstance(item.get("exitPhrase"), str) else None,
                terminal.when(item.get("attemptStartedTime")),
                terminal.when(item.get("attemptCompletedTime")),
            ]
            for item in found
        ],
    )


@app.command()
def events(
    job: JobName,
    cluster: ClusterOption = None,
    warnings: Annotated[bool, typer.Option("--warnings", help="Only warnings.")] = False,
    as_json: Json = False,
) -> None:
    """List a job's events, oldest first.

    They are Kubernetes' own: why a task is not scheduled, which image cannot be pulled.
    """
    from ggs.pai.client import job_facts
    from ggs.pai.client.connect import connect
    from ggs.pai.client.responses import clean

    user, name = user_and_name(job)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        found = job_facts.events(client, name, user, "Warning" if warnings else None)
    if as_json:
        terminal.result_json(found)
        return
    for item in found:
        role, index = item.get("taskroleName"), item.get("taskIndex")
        where = clean(f"{role}:{index}", 100) if role else "job"
        texts = [clean(str(item.get(key) or ""), 300) for key in ("type", "reason", "message")]
        if item.get("count") not in (None, 1):
            texts[2] += " " + clean(f"({item['count']} times)", 30)
        when = clean(str(item.get("lastTimestamp") or "-"), 30)
        terminal.result(f"{when}  {where}  {texts[0]}  {texts[1]}: {texts[2]}")
    if not found:
        terminal.say("no events")

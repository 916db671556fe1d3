"""``pai job list``, ``status``, ``config``: what the cluster knows of jobs."""

import json
from typing import Annotated

import typer

from ggs.pai.cli import terminal
from ggs.pai.cli.options import ClusterOption, JobName, Json, user_and_name

app = typer.Typer()


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

    user, name = user_and_name(job)
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
def config(job: JobName, cluster: ClusterOption = None) -> None:
    """Print the file that a job was submitted with.

    OpenPAI has masked its secrets.
    """
    import yaml

    from ggs.pai.client.connect import connect

    user, name = user_and_name(job)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        stored = client.config(name, user)
    terminal.result(yaml.safe_dump(stored, sort_keys=False, allow_unicode=True, width=100), end="")

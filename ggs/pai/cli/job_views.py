"""``pai job list``, ``status``, ``show``, ``config``: which jobs there are, and how they do."""

from typing import TYPE_CHECKING, Annotated

import typer

from ggs.errors import ConfigurationError
from ggs.pai.cli import terminal
from ggs.pai.cli.options import Attempt, ClusterOption, JobName, Json, Repeatable, user_and_name

if TYPE_CHECKING:
    from ggs.pai.client.job_facts import TaskFacts
    from ggs.pai.client.status import JobStatus

app = typer.Typer()

STATES = ("WAITING", "RUNNING", "STOPPING", "SUCCEEDED", "FAILED", "STOPPED")


@app.command("list")
def list_jobs(
    cluster: ClusterOption = None,
    user: Annotated[Repeatable, typer.Option(help="Whose jobs. [default: yours]")] = None,
    everyone: Annotated[bool, typer.Option("--everyone", help="The jobs of all users.")] = False,
    state: Annotated[
        Repeatable,
        typer.Option(
            help="Only in this state: WAITING, RUNNING, SUCCEEDED, …", autocompletion=lambda: STATES
        ),
    ] = None,
    virtual_cluster: Annotated[Repeatable, typer.Option(help="Only in this one.")] = None,
    tag: Annotated[Repeatable, typer.Option(help="Only with this tag.")] = None,
    without_tag: Annotated[Repeatable, typer.Option(help="Only without this tag.")] = None,
    priority: Annotated[
        Repeatable, typer.Option(help="Only of this HiveD class: prod, test, oppo, default.")
    ] = None,
    keyword: Annotated[
        str, typer.Option(help="Only where job, user or virtual cluster contains this.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=5000, help="How many, newest first.")] = 20,
    offset: Annotated[int, typer.Option(min=0, help="Leave out so many of the newest.")] = 0,
    as_json: Json = False,
) -> None:
    """List jobs, newest first.

    A filter given several times lists what fits any of its values; different filters must all fit.
    """
    from ggs.pai.client.connect import connect
    from ggs.pai.client.job_filter import JobFilter
    from ggs.pai.client.responses import clean

    if everyone and user:
        raise ConfigurationError("--everyone lists all users' jobs: leave out --user")
    states = [item.upper() for item in state or ()]
    wrong = next((item for item in states if item not in STATES), None)
    if wrong:
        raise ConfigurationError(f"--state {wrong}: use one of {', '.join(STATES)}")
    wanted = JobFilter(
        users=user or (),
        everyone=everyone,
        states=states,
        virtual_clusters=virtual_cluster or (),
        tags=tag or (),
        without_tags=without_tag or (),
        priorities=priority or (),
        keyword=keyword,
    )
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        jobs = client.jobs(wanted, limit=limit, offset=offset)
    if as_json:
        terminal.result_json(jobs)
        return
    several = everyone or len(user or ()) > 1
    keys = ("state", "virtualCluster", "totalTaskNumber", "totalGpuNumber", "retries")
    terminal.table(
        ("NAME", *(["USER"] * several), "STATE", "VC", "TASKS", "GPUS", "RETRIES", "SUBMITTED"),
        [
            [clean(str(job.get(key)), 60) for key in ("name", *(["username"] * several), *keys)]
            + [terminal.when(job.get("submissionTime"))]
            for job in jobs
        ],
    )


@app.command()
def status(
    job: JobName, cluster: ClusterOption = None, attempt: Attempt = None, as_json: Json = False
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
        terminal.result_json(answer)
        return
    state = read(answer)
    _show_job(name, state, url)
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
def show(
    job: JobName, cluster: ClusterOption = None, attempt: Attempt = None, as_json: Json = False
) -> None:
    """Show a job and its tasks in detail.

    Of each task: state, host, ports, GPUs, exit code and what OpenPAI says about it, ssh command.
    """
    from ggs.pai.client import job_facts
    from ggs.pai.client.connect import connect
    from ggs.pai.client.responses import clean
    from ggs.pai.client.status import read

    user, name = user_and_name(job)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        state = read(client.job(name, user, attempt))
        config = job_facts.stored_file(client, name, user)
        url = client.cluster.job_url(name, user)
        owner = user or client.cluster.user
    tasks = job_facts.tasks(state, config)
    tags = [clean(tag, 100) for tag in state.tags if isinstance(tag, str)]
    if as_json:
        terminal.result_json(
            {
                "name": name,
                "user": owner,
                "state": state.state,
                "attempt": state.job_status.attempt_id,
                "retries": state.job_status.retries,
                "virtual_cluster": state.job_status.virtual_cluster,
                "reason": state.reason(),
                "tags": tags,
                "url": url,
                "tasks": tasks,
            }
        )
        return
    _show_job(name, state, url)
    if state.job_status.virtual_cluster:
        terminal.result(f"virtual cluster {clean(state.job_status.virtual_cluster, 100)}")
    if tags:
        terminal.result(f"tags {', '.join(tags)}")
    for task in tasks:
        _show_task(task, job_facts.has_ssh(config))


@app.command()
def config(job: JobName, cluster: ClusterOption = None, as_json: Json = False) -> None:
    """Print the file that a job was submitted with.

    OpenPAI has masked its secrets.
    """
    from ggs.pai.client.connect import connect
    from ggs.pai.client.stored_file import to_text

    user, name = user_and_name(job)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        stored = client.config(name, user)
    if as_json:
        terminal.result_json(stored)
        return
    terminal.result(to_text(stored), end="")


def _show_job(name: str, job: "JobStatus", url: str) -> None:
    terminal.result(f"{name}: {job.summary()}")
    if job.reason():
        terminal.result(f"reason: {job.reason()}")
    terminal.result(
        f"submitted {terminal.when(job.job_status.submission_time)}, "
        f"started {terminal.when(job.job_status.launched_time)}, "
        f"ended {terminal.when(job.job_status.completed_time)}"
    )
    terminal.result(url)


def _show_task(task: "TaskFacts", has_ssh: bool) -> None:
    retries = f", after {task.retries} retries" if task.retries else ""
    terminal.result(f"\n{task.task}: {task.state}{retries}")
    indices = ",".join(map(str, task.gpu_indices or ()))
    lines = {
        "host": f"{task.address or '-'} ({task.node or 'no node yet'})",
        "ports": ", ".join(
            f"{label} {','.join(map(str, numbers))}" for label, numbers in task.ports.items()
        ),
        "gpus": "" if task.gpus is None else f"{task.gpus}{f' ({indices})' if indices else ''}",
        "exit": ""
        if task.exit_code is None
        else f"{task.exit_code}; {task.exit_reason}".rstrip("; "),
        "ssh": task.ssh if has_ssh and task.state == "RUNNING" else "",
    }
    for label, text in lines.items():
        if text:
            terminal.result(f"  {label:<6}{text}")

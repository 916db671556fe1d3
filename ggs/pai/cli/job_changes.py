"""``pai job stop``, ``tag`` and ``untag``: changes to a job that was submitted."""

from typing import Annotated

import typer

from ggs.pai.cli import terminal
from ggs.pai.cli.options import ClusterOption, JobName, Json, user_and_name

app = typer.Typer()


Jobs = Annotated[
    list[str], typer.Argument(metavar="JOB…", help="NAME of your job, or USER~NAME; several.")
]
Tags = Annotated[list[str], typer.Argument(metavar="TAG…", help="Texts without a comma.")]


@app.command()
def stop(jobs: Jobs, cluster: ClusterOption = None, as_json: Json = False) -> None:
    """Stop jobs.

    OpenPAI kills their tasks without a signal first: only what a checkpoint has is kept.
    """
    from ggs.pai.client.connect import connect

    names = [user_and_name(job) for job in jobs]
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        for user, name in names:
            client.stop(name, user)
            terminal.say(f"{name} is being stopped")
        if as_json:
            stopped = [{"user": user or client.cluster.user, "name": name} for user, name in names]
            terminal.result_json(stopped)


@app.command()
def tag(job: JobName, tags: Tags, cluster: ClusterOption = None, as_json: Json = False) -> None:
    """Add tags to a job.

    "pai job list --tag" finds it by them.
    """
    _change_tags(job, tags, cluster, as_json, add=True)


@app.command()
def untag(job: JobName, tags: Tags, cluster: ClusterOption = None, as_json: Json = False) -> None:
    """Remove tags from a job."""
    _change_tags(job, tags, cluster, as_json, add=False)


def _change_tags(job: str, tags: list[str], cluster: str | None, as_json: bool, add: bool) -> None:
    from ggs.pai.client import job_facts
    from ggs.pai.client.connect import connect
    from ggs.pai.client.responses import clean
    from ggs.pai.client.status import read

    user, name = user_and_name(job)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        for text in tags:
            (job_facts.tag if add else job_facts.untag)(client, name, user, text)
        now = [text for text in read(client.job(name, user)).tags if isinstance(text, str)]
    if as_json:
        terminal.result_json(now)
        return
    listed = ", ".join(sorted(clean(text, 100) for text in now))
    terminal.say(f"tags of {name}: {listed or 'none'}")

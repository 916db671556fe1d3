"""``pai job stop``, ``tag`` and ``untag``: changes to a job that was submitted."""

import typer

from ggs.pai.cli import terminal
from ggs.pai.cli.options import ClusterOption, JobName, user_and_name

app = typer.Typer()


@app.command()
def stop(job: JobName, cluster: ClusterOption = None) -> None:
    """Stop a job.

    OpenPAI kills its tasks without a signal first: only what a checkpoint has is kept.
    """
    from ggs.pai.client.connect import connect

    user, name = user_and_name(job)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        client.stop(name, user)
    terminal.say(f"{name} is being stopped")

"""Arguments and options that several commands of ``pai`` have in common, and how they are read."""

from pathlib import Path
from typing import Annotated

import typer

from ggs.errors import ConfigurationError
from ggs.text import name_and_value


def known_aliases() -> list[str]:
    """The clusters that the user has, for the shell's completion."""
    from ggs.pai.client import clusters

    try:
        return [cluster.alias for cluster in clusters.load()[0]]
    except ConfigurationError:  # said by the command itself
        return []


File = Annotated[Path, typer.Argument(metavar="FILE", help="A job file (protocol version 2).")]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="NAME of your job, or USER~NAME.")]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-a",
        help="Alias. [default: PAI_CLUSTER, or the only one]",
        autocompletion=known_aliases,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of the file; repeatable."),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="openpai|ltp|both",
        help="What the file is for. [default: both; when submitting, the cluster's]",
    ),
]
Ignored = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore", metavar="CHECK", help="Submit in spite of this check's errors; repeatable."
    ),
]
NewName = Annotated[str | None, typer.Option("--name", help="Another name for the job.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be sent, and send nothing.")
]
Attempt = Annotated[int | None, typer.Option(min=0, help="An earlier attempt.")]
Repeatable = list[str] | None
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def parse_settings(settings: list[str] | None) -> dict[str, str]:
    """Values by name, of ``--set``. Raises ConfigurationError for what is not NAME=VALUE."""
    return dict(name_and_value(setting, "--set") for setting in settings or [])


def user_and_name(job: str) -> tuple[str | None, str]:
    """The parts of USER~NAME, or None and NAME. Raises ConfigurationError for anything else."""
    user, tilde, name = job.rpartition("~")
    if (tilde and not user) or not name:
        raise ConfigurationError(f"{job!r} is not a job: give NAME or USER~NAME")
    return user or None, name

"""``pai job clone``: an earlier job once more, changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ggs.errors import ConfigurationError
from ggs.pai.cli import terminal
from ggs.pai.cli.options import (
    ClusterOption,
    DryRun,
    JobName,
    Json,
    NewName,
    Settings,
    parse_settings,
    user_and_name,
)

app = typer.Typer()


@app.command()
def clone(
    job: JobName,
    cluster: ClusterOption = None,
    settings: Settings = None,
    name: NewName = None,
    secrets: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="YAML of what stood below 'secrets:', which OpenPAI does not show."
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Submit an earlier job again, changed.

    What --set changes is changed, everything else stays. The job may be somebody else's (USER~NAME);
    the new one is yours. Without --name it keeps its name, numbered on if you have that name already.
    """
    from ggs.pai.cli.file_check import FileCheck
    from ggs.pai.cli.submit import check, send, show_dry_run
    from ggs.pai.client.connect import connect
    from ggs.pai.client.stored_file import to_document
    from ggs.pai.client.submission import prepare
    from ggs.pai.job.edit import edit

    user, old_name = user_and_name(job)
    given = None if secrets is None else _read_secrets(secrets)
    with connect(cluster, terminal.warn, terminal.ask_secret) as client:
        document = to_document(client.config(old_name, user), given, f"job {old_name!r}")
        if name is None:
            name = client.free_name(old_name) if client.exists(old_name) else old_name
        changed = edit(document, parse_settings(settings), name)
        checked = FileCheck()
        submission = prepare(check(changed, f"job {old_name!r}", checked))
        if dry_run:
            show_dry_run(submission, as_json)
        else:
            checked.settle(client)
            send(client, submission, cluster, as_json)


def _read_secrets(file: Path) -> Mapping[str, Any]:
    import yaml

    from ggs import plain_yaml

    try:
        value = plain_yaml.load(file.read_text())
    except OSError as error:
        raise ConfigurationError(f"--secrets {file}: {error.strerror}") from None
    except (ValueError, yaml.YAMLError):
        raise ConfigurationError(f"--secrets {file}: this is not YAML") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"--secrets {file}: give a mapping, NAME: VALUE a line")
    return value

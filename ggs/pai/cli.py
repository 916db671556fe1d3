"""Submit and follow OpenPAI jobs, check job files, try them on this machine.

Exit codes: 0 success; 1 the job file has errors, or the job failed; 2 wrong use: an option, an
alias, a file; 3 the server refused; 4 no usable answer came from the server; 130 interrupted.
For "pai job wait" also: 5 the job was stopped, 6 it is stuck in WAITING, 124 the time is up.
"""

import sys
from typing import Annotated

import typer

from ggs import __version__
from ggs.errors import GGSError, ServerRefusedError, UnreachableError
from ggs.pai import cluster_commands, console, job_commands

app = typer.Typer(
    name="pai",
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    # tracebacks with local variables would show tokens
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(job_commands.app, name="job")
app.add_typer(cluster_commands.app, name="cluster")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pai of ggs {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


def exit_code(error: GGSError) -> int:
    """The exit code that stands for an error; see the module's text."""
    if isinstance(error, ServerRefusedError):
        return 3
    return 4 if isinstance(error, UnreachableError) else 2


def main() -> None:
    """Entry point of the ``pai`` command."""
    try:
        app()
    except GGSError as error:
        console.fail(str(error))
        sys.exit(exit_code(error))

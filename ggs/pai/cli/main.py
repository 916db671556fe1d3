"""Submit and follow OpenPAI jobs, check job files, try them on this machine.

Exit codes: 0 success; 1 the job file has errors, or the job failed; 2 wrong use: an option, an
alias, a file; 3 the server refused; 4 no usable answer came from the server; 130 interrupted.
For "pai job wait" also: 5 the job was stopped, 6 it is stuck in WAITING, 124 the time is up.
"""

import sys

from ggs._version import __version__
from ggs.command_line import command_line
from ggs.errors import GGSError, ServerRefusedError, UnreachableError
from ggs.pai.cli import (
    cluster_commands,
    cluster_views,
    job_changes,
    job_clone,
    job_commands,
    job_details,
    job_follow,
    job_views,
    terminal,
)

app = command_line("pai", __doc__, f"pai of ggs {__version__}", completion=True)
for part in (job_clone, job_views, job_details, job_follow, job_changes):
    job_commands.app.add_typer(part.app)
cluster_commands.app.add_typer(cluster_views.app)
app.add_typer(job_commands.app, name="job")
app.add_typer(cluster_commands.app, name="cluster")


def exit_code(error: GGSError) -> int:
    """The exit code that stands for an error; see the module's text."""
    if isinstance(error, ServerRefusedError):
        return 3
    return 4 if isinstance(error, UnreachableError) else 2


def main() -> None:
    """Entry point of the ``pai`` command."""
    try:
        app(prog_name="pai")  # also where python -m started it
    except GGSError as error:
        terminal.fail(str(error))
        sys.exit(exit_code(error))

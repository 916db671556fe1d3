"""What the commands ``ggs`` and ``pai`` have in common: help on -h, one-line errors, --version."""

from typing import Annotated

import typer


def command_line(
    name: str, text: str | None, version: str, completion: bool = False
) -> typer.Typer:
    """A command without subcommands as yet.

    Args:
        name: the command's own.
        text: its help.
        version: what --version shows.
        completion: whether to offer the shell's completion, --install-completion.
    """
    app = typer.Typer(
        name=name,
        help=text,
        no_args_is_help=True,
        add_completion=completion,
        pretty_exceptions_enable=False,  # they would show local variables, tokens too
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(version)
            raise typer.Exit

    @app.callback()
    def options(
        version: Annotated[
            bool,
            typer.Option(
                "--version", callback=show_version, is_eager=True, help="Show the version."
            ),
        ] = False,
    ) -> None:
        pass

    return app

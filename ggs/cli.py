"""General Gradient Sparsification: train with a thousandth of the traffic, with any optimizer."""

import sys

import typer

app = typer.Typer(
    name="ggs",
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _commands() -> None:
    """Make ``train`` a command by name even while it is the only one."""


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def train(context: typer.Context) -> None:
    """Train an image classifier on one or several workers."""
    from ggs.train.start import start

    raise typer.Exit(start(context.args))


def main() -> None:
    """Entry point of the ``ggs`` command."""
    from ggs.pai.launch import guard

    sys.exit(guard(app))


if __name__ == "__main__":
    main()

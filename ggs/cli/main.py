"""General Gradient Sparsification: train with a thousandth of the traffic, with any optimizer."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ggs._version import __version__
from ggs.command_line import command_line
from ggs.text import readable_bytes

app = command_line("ggs", __doc__, f"ggs {__version__}")


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def train(context: typer.Context) -> None:
    """Train an image classifier on one or several workers."""
    from ggs.train.start import start

    raise typer.Exit(start(context.args))


@app.command()
def plan(
    model: str = typer.Option(
        ...,
        help="A classifier of torchvision.models, such as resnet50; lenet5, cifarnet; or your own as "
        "package.module:function. The CIFAR variants are ggs.train.models:CifarAlexNet and "
        "ggs.train.models:cifar_densenet121.",
    ),
    nodes: int = typer.Option(..., help="Hosts."),
    gpus: int = typer.Option(0, help="GPUs of each host; 0: one CPU worker."),
    bandwidth: str = typer.Option(..., help="Between two hosts, each way: 1Gbit, 100Mbit."),
    latency: str = typer.Option("50us", help="Until a message's first byte: 50us, 0.2ms."),
    step_ms: float | None = typer.Option(
        None,
        help="Milliseconds of a step without communication; alexnet, resnet50 and densenet121: unset, as "
        "measured on a CPU.",
    ),
    density: float = typer.Option(0.001, help="Share of the elements that GGS sends."),
    values: str = typer.Option("fp32", help="Format of the sent values."),
    every: int = typer.Option(1, help="Steps from one of GGS's exchanges to the next."),
) -> None:
    """Predict bytes, step time and speed-up on a cluster, and say whether GGS pays."""
    from ggs.cli.plan import plan as predicted

    typer.echo(predicted(model, nodes, gpus, bandwidth, latency, step_ms, density, values, every))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, finished or not.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
) -> None:
    """Compare runs in one HTML file that needs no network."""
    from ggs.report.page import write_report

    size = write_report(runs, out)
    typer.echo(f"{out}: {len(runs)} run{'s' if len(runs) > 1 else ''}, {readable_bytes(size)}")


@app.command("env")
def environment() -> None:
    """Show versions, GPUs, network and OpenPAI's variables, and what is wrong: for a bug report."""
    from ggs.cli.env import diagnose, render

    typer.echo(render(diagnose(os.environ)))


def main() -> None:
    """Entry point of the ``ggs`` command."""
    from ggs.launch.launcher import guard

    sys.exit(guard(app))


if __name__ == "__main__":
    main()

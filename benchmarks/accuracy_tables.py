"""Tables and plots of what ``accuracy.py`` measured.

    python benchmarks/accuracy_tables.py docs/results/*.jsonl [--plots docs/results]

Prints Markdown. The difference to dense training is taken seed by seed (a seed fixes initial weights and
the order of images) at the same number of steps, then averaged. Plots need matplotlib.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from results_file import ResultsError, parse

Run = dict[str, Any]

STUDY = ("data", "image_size", "model", "length", "workers", "batch_size", "accelerator")
"""What runs that can be compared have in common."""
VARIANT = (
    "optimizer",
    "lr",
    "density",
    "density_warmup",
    "method",
    "scope",
    "values",
    "batchnorm",
    "settings",
)
"""What runs of one row of a table have in common: they differ in their seeds."""
FIGURES = ("steps", "top1", "replicas_min", "replicas_mean", "bytes_per_step", "bytes_total",
           "dense_bytes_per_step")  # fmt: skip
"""What a result must have beside them."""
HEADS = {"optimizer": "optimizer", "density": "density", "density_warmup": "density warm-up",
         "method": "method", "scope": "scope", "values": "values", "batchnorm": "batch norm",
         "lr": "lr", "settings": "settings"}  # fmt: skip
ALWAYS = ("optimizer", "density", "density_warmup", "method")
ORDER = ("dense", "ggs", "gs", "dgc")


def load(paths: Iterable[Path]) -> list[Run]:
    """The runs in these files of JSON lines; lines of other benchmarks are passed over, and so is a run
    that is there already, as where two machines have done the same one. Raises OSError, ResultsError.
    """
    runs: dict[str, Run] = {}
    for path in paths:
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if line.strip() and (run := _result(line, f"line {number} of {path}")):
                runs.setdefault(identity(run), run)
    return list(runs.values())


def _result(line: str, where: str) -> Run | None:
    found = parse(line, where)
    if "top1" not in found:
        return None
    if missing := [name for name in (*STUDY, *VARIANT, "seed", *FIGURES) if name not in found]:
        raise ResultsError(f"{where} has no {', '.join(missing)}: run it again")
    return found


def identity(run: Run) -> str:
    """The part of a result that says which run it is of."""
    return json.dumps([run[name] for name in (*STUDY, *VARIANT, "seed")], sort_keys=True)


def grouped(
    runs: Iterable[Run], key: Callable[[Run], tuple[Any, ...]]
) -> dict[tuple[Any, ...], list[Run]]:
    """Runs by key, in the order in which the keys come."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def study_of(run: Run) -> tuple[Any, ...]:
    """Runs with the same can be compared."""
    return tuple(run[name] for name in STUDY)


def variant_of(run: Run) -> tuple[Any, ...]:
    """Runs with the same differ in their seed only."""
    return tuple(json.dumps(run[name]) for name in VARIANT)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation, which one value has not."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def difference(runs: Sequence[Run], dense: Sequence[Run]) -> tuple[float, int] | None:
    """Mean of top-1 minus dense top-1 over the seeds that both have, and their number."""
    base = {run["seed"]: run["top1"] for run in dense}
    found = [run["top1"] - base[run["seed"]] for run in runs if run["seed"] in base]
    return (statistics.fmean(found), len(found)) if found else None


def dense_twin(run: Run, runs: Sequence[Run]) -> list[Run]:
    """The dense runs with this run's optimizer, learning rate and settings."""
    same = ("optimizer", "lr", "settings")
    return [
        other
        for other in runs
        if other["method"] == "dense" and all(other[name] == run[name] for name in same)
    ]


def tables(runs: Sequence[Run]) -> str:
    """One Markdown table per data set, model, length and number of workers."""
    parts = []
    for found in grouped(sorted(runs, key=_rank), study_of).values():
        sparse = [run for run in found if run["method"] != "dense"]
        shown = [
            name
            for name in HEADS
            if name in ALWAYS or len({json.dumps(run[name]) for run in sparse}) > 1
        ]
        heads = [HEADS[name] for name in shown]
        heads += ["top-1 %", "seeds", "to dense", "bytes per step", "less than dense", "whole run"]
        replicas = any(run["replicas_mean"] is not None for run in found)
        heads += ["replicas, mean", "replicas, worst"] if replicas else []
        lines = [
            _title(found[0]),
            "",
            "| " + " | ".join(heads) + " |",
            "|---" * len(heads) + "|",
        ]
        for variant in grouped(found, variant_of).values():
            cells = [_cell(variant[0], name) for name in shown] + _figures(variant, found)
            cells += _replicas(variant) if replicas else []
            lines.append("| " + " | ".join(cells) + " |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def short(model: str) -> str:
    """The function's name of one's own model, ``package.module:function``; the others' names as they are."""
    return model.rpartition(":")[2]


def _title(run: Run) -> str:
    size, accelerator = run["image_size"], run["accelerator"]
    return (
        f"{short(run['model'])} on {run['data']}{f' at {size} x {size}' if size else ''}, {run['length']}, "
        f"{run['workers']} workers x batch {run['batch_size']}{f', {accelerator}' if accelerator else ''}"
    )


def _rank(run: Run) -> tuple[Any, ...]:
    amount, unit = run["length"].split()
    return (
        run["data"], run["model"], unit, int(amount), json.dumps(study_of(run)), run["optimizer"],
        -run["density"], str(run["density_warmup"]), ORDER.index(run["method"]), variant_of(run), run["seed"],
    )  # fmt: skip


def _cell(run: Run, name: str) -> str:
    value = run[name]
    if name == "density":
        return f"{value:g}"
    if name == "settings":
        return ", ".join(f"{key} {setting}" for key, setting in value.items()) or "-"
    return "-" if value is None else str(value)


def _figures(variant: Sequence[Run], runs: Sequence[Run]) -> list[str]:
    mean, deviation = mean_and_deviation([run["top1"] for run in variant])
    spread = "" if deviation is None else f" ± {deviation:.2f}"
    against = difference(variant, dense_twin(variant[0], runs))
    sent = statistics.fmean(run["bytes_per_step"] for run in variant)
    dense = statistics.fmean(run["dense_bytes_per_step"] for run in variant)
    total = sum(run["bytes_total"] for run in variant)
    sparse = variant[0]["method"] != "dense"
    settled = not sparse or all(run.get("settled_steps", 1) for run in variant)
    return [
        f"{mean:.2f}{spread}",
        str(len(variant)),
        "-" if against is None or not sparse else _against(*against, len(variant)),
        f"{sent:,.0f}" if settled else "-",
        f"{dense / sent:,.0f}x" if sparse and sent and settled else "-",
        f"{dense * sum(run['steps'] for run in variant) / total:,.1f}x"
        if sparse and total
        else "-",
    ]


def _against(difference: float, pairs: int, seeds: int) -> str:
    """With how many seeds the difference is of, where dense training has not all of them."""
    return f"{difference:+.2f}" + (f" ({pairs})" if pairs < seeds else "")


def _replicas(variant: Sequence[Run]) -> list[str]:
    """Top-1 of the workers with their own batch-norm layers; all the same where those are synchronised."""
    if any(run["replicas_mean"] is None for run in variant):
        return ["-", "-"]
    mean = statistics.fmean(run["replicas_mean"] for run in variant)
    return [f"{mean:.2f}", f"{min(run['replicas_min'] for run in variant):.2f}"]


def plot(runs: Sequence[Run], folder: Path) -> list[Path]:
    """One SVG per data set and model: top-1 against density, a panel per length and optimizer."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "ggs"  # the same runs give the same file
    mpl.rcParams["svg.fonttype"] = "none"
    written = []
    for (data, model), found in grouped(runs, lambda run: (run["data"], run["model"])).items():
        panels = grouped(sorted(found, key=_rank), _panel_of)
        columns = min(3, len(panels))
        rows = -(-len(panels) // columns)
        figure = Figure(figsize=(4.2 * columns, 3.6 * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        differing = [name for name in PANEL if len({json.dumps(run[name]) for run in found}) > 1]
        for place, part in enumerate(panels.values()):
            axis = axes[place // columns][place % columns]
            _panel(axis, part)
            names = [name for name in PANEL if name in ("optimizer", "length") or name in differing]
            axis.set_title(", ".join(_cell(part[0], name) for name in names), fontsize=10)
        for place in range(len(panels), rows * columns):
            axes[place // columns][place % columns].set_axis_off()
        figure.suptitle(f"{short(model)} on {data}", fontsize=11)
        name = re.sub(r"[^a-z0-9._-]+", "-", f"{data}-{short(model)}".lower().replace(")", ""))
        path = folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        written.append(path)
    return written


PANEL = (
    "optimizer",
    "length",
    "lr",
    "workers",
    "batch_size",
    "image_size",
    "settings",
    "accelerator",
)
"""What runs of one panel have in common: dense training is the same line for all of them."""


def _panel_of(run: Run) -> tuple[Any, ...]:
    return tuple(json.dumps(run[name], sort_keys=True) for name in PANEL)


STYLES = {"ggs": ("o", "-", "C0"), "gs": ("s", "--", "C1"), "dgc": ("^", ":", "C2")}
"""Marker, dashes, colour."""


def _panel(axis: Any, runs: Sequence[Run]) -> None:
    """Lines tell methods by marker and dashes, warm-up by filled markers: readable without colour.

    Of what else a run may differ in, the defaults only: other scopes, formats and batch-norm modes are in
    the tables.
    """
    dense = [run["top1"] for run in runs if run["method"] == "dense"]
    if dense:
        axis.axhline(statistics.fmean(dense), color="black", linewidth=1, label="dense")
        axis.axhspan(min(dense), max(dense), color="black", alpha=0.12, linewidth=0)
    plain = [run for run in runs if run["method"] != "dense" and run["scope"] == "global"
             and run["values"] == "fp32" and run["batchnorm"] == "average"]  # fmt: skip
    lines = grouped(plain, lambda run: (run["method"], run["density_warmup"]))
    for (method, warmup), part in lines.items():
        points = grouped(part, lambda run: (run["density"],))
        means = [mean_and_deviation([run["top1"] for run in group]) for group in points.values()]
        marker, dash, colour = STYLES[method]
        warm = warmup not in ("0", "0 epochs", "0 steps")
        axis.errorbar(
            [density for (density,) in points],
            [mean for mean, _ in means],
            yerr=[deviation or 0.0 for _, deviation in means],
            marker=marker,
            linestyle=dash,
            color=colour,
            markerfacecolor=None if warm else "white",
            capsize=3,
            label=f"{method}, {'warm-up ' + warmup if warm else 'no warm-up'}",
        )
    axis.set_xscale("log")
    axis.set_xlabel("density")
    axis.set_ylabel("top-1 %")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables of the files; draw the plots."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--plots", type=Path, help="folder for SVG files")
    arguments = parser.parse_args(argv)
    try:
        runs = load(arguments.files)
    except (OSError, ResultsError) as error:
        print(f"accuracy_tables.py: {error}", file=sys.stderr)
        return 2
    print(tables(runs))
    if arguments.plots:
        for path in plot(runs, arguments.plots):
            print(f"wrote {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The picture of the language study: loss against bytes, every method on it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
from language_tables import Variant, best_dense, tuned
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLES = {
    "dense": ("dense", "*", "black"),
    "ggs": ("GGS", "o", "C0"),
    "gs": ("gradient sparsification", "s", "C1"),
    "sparseloco": ("SparseLoCo", "^", "C2"),
    "powersgd": ("PowerSGD", "D", "C3"),
    "onebit_adam": ("1-bit Adam", "v", "C4"),
    "demo": ("DeMo", "P", "C5"),
    "averaging": ("averaging", "X", "C6"),
    "diloco": ("DiLoCo", "<", "C7"),
}
"""Name, marker and colour of each method."""


def draw(variants: Sequence[Variant], path: Path) -> None:
    """Write an SVG: every variant at its best learning rate, bars of a deviation, lower left is better."""
    mpl.rcParams["svg.hashsalt"] = "ggs"  # the same runs give the same file
    mpl.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    step, whole = figure.subplots(1, 2, sharey=True)
    best, dense = tuned(variants), best_dense(variants)
    _panel(step, best, dense, lambda variant: variant.bytes_per_step)
    _panel(whole, best, dense, lambda variant: variant.bytes_total)
    step.set_xlabel("bytes a worker sends in a step after the warm-up (log)")
    whole.set_xlabel("bytes a worker sends in the whole run (log)")
    step.set_ylabel("validation loss, nats a character")
    handles, labels = step.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _panel(
    axis: Axes, variants: Sequence[Variant], dense: Variant | None, of: Callable[[Variant], float]
) -> None:
    lines: dict[str, list[Variant]] = {}
    for variant in variants:
        lines.setdefault(_line(variant), []).append(variant)
    if dense:
        axis.axhline(dense.loss, color="black", linewidth=0.8, alpha=0.5)
    for name, (label, marker, colour) in STYLES.items():
        points = sorted(lines.get(name, []), key=of)
        if points:
            axis.errorbar(
                [of(variant) for variant in points],
                [variant.loss for variant in points],
                yerr=[variant.deviation or 0.0 for variant in points],
                marker=marker,
                linestyle="-" if name == "ggs" else "none",
                color=colour,
                capsize=3,
                label=label,
            )
    axis.set_xscale("log")
    axis.grid(alpha=0.3)


def _line(variant: Variant) -> str:
    """The method; averaging with an outer momentum is DiLoCo."""
    setting = variant.setting
    return "diloco" if setting.options.get("outer_momentum") else setting.method

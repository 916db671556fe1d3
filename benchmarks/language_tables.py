"""Tables and the picture of what ``language.py`` measured.

    python benchmarks/language_tables.py [--grid targets,rivals]
    python benchmarks/language_tables.py --page docs/language.md --plot docs/results/language.svg

Prints a Markdown table for each grid, or writes them into the page, between its two marks. The picture
has every method of "targets" and "rivals": loss against the bytes of a step, and of the whole run. It
needs matplotlib.
"""

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import results_file
from language import OUT
from language_grids import GRIDS, SEEDS, TITLES, runs
from language_settings import NAMES, Row, Setting, identity

HEADS = {"method": "method", "optimizer": "optimizer", "lr": "lr", "momentum": "momentum",
         "density": "density", "values": "values", "warmup_steps": "warm-up", "every": "every",
         "options": "options"}  # fmt: skip
_ALWAYS = ("method", "lr")
BEGIN, END = "<!-- tables: begin -->\n", "<!-- tables: end -->\n"
"""What of a page lies between is written by this program."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """Runs that differ in their seed only."""

    setting: Setting
    """Of the first seed."""
    rows: tuple[Row, ...]

    @property
    def loss(self) -> float:
        """Mean validation loss, nats a character."""
        return statistics.fmean(row["loss"] for row in self.rows)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the seeds; one has none."""
        losses = [row["loss"] for row in self.rows]
        return statistics.stdev(losses) if len(losses) > 1 else None

    @property
    def bytes_per_step(self) -> float:
        """Mean bytes that a worker sends in a step after the warm-up."""
        return statistics.fmean(row["bytes_per_step"] for row in self.rows)

    @property
    def bytes_total(self) -> float:
        """Mean bytes that a worker sends in the whole run."""
        return statistics.fmean(row["bytes_total"] for row in self.rows)

    @property
    def dense_bytes_per_step(self) -> float:
        """What dense training sends."""
        return float(self.rows[0]["dense_bytes_per_step"])


def measured(grids: Iterable[str], rows: Iterable[Row], width: int) -> list[Variant]:
    """What of these grids has been run, in their order, seeds together."""
    found = {identity(row): row for row in rows}
    variants: dict[str, list[Row]] = {}
    for setting in runs(grids, SEEDS, width):
        if row := found.get(identity(dataclasses.asdict(setting))):
            variants.setdefault(_without_seed(row), []).append(row)
    return [
        Variant(Setting(**{name: group[0][name] for name in NAMES}), tuple(group))
        for group in variants.values()
    ]


def _without_seed(row: Row) -> str:
    return json.dumps([row[name] for name in NAMES if name != "seed"], sort_keys=True)


def tuned(variants: Iterable[Variant]) -> list[Variant]:
    """Of variants that differ in their learning rate only, the one with the lowest mean loss.

    One that has not as many seeds as another is not compared with it.
    """
    groups: dict[str, list[Variant]] = {}
    for variant in variants:
        same = dataclasses.replace(variant.setting, lr=0.0, seed=0)
        groups.setdefault(repr(same), []).append(variant)
    best = []
    for group in groups.values():
        seeds = max(len(variant.rows) for variant in group)
        best.append(min((v for v in group if len(v.rows) == seeds), key=lambda v: v.loss))
    return best


def best_dense(variants: Iterable[Variant]) -> Variant | None:
    """Dense training with AdamW at its best learning rate."""
    dense = [v for v in variants if v.setting.method == "dense" and v.setting.optimizer == "adamw"]
    seeds = max((len(variant.rows) for variant in dense), default=0)
    return min((v for v in dense if len(v.rows) == seeds), key=lambda v: v.loss, default=None)


def table(variants: Sequence[Variant], dense: Variant | None) -> str:
    """One row a variant; the settings that differ, and what came of them.

    Args:
        dense: what losses are compared with, seed by seed.
    """
    shown = [name for name in HEADS if name in _ALWAYS or _differs(name, variants)]
    heads = [HEADS[name] for name in shown]
    heads += ["loss", "seeds", "to best dense", "bytes per step", "less", "whole run", "less"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for variant in variants:
        cells = [_cell(getattr(variant.setting, name)) for name in shown]
        lines.append("| " + " | ".join(cells + _figures(variant, dense)) + " |")
    return "\n".join(lines) + "\n"


def pivot(variants: Sequence[Variant]) -> str:
    """Loss of GGS by momentum (rows) and density (columns), and of dense training beside it."""
    columns = sorted({v.setting.density for v in variants if v.setting.density is not None})
    cells = {(v.setting.momentum, v.setting.density): v for v in variants}
    heads = ["momentum", *(f"density {density:g}" for density in columns), "dense"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for momentum in sorted({v.setting.momentum for v in variants}):
        losses = [_loss(cells.get((momentum, density))) for density in (*columns, None)]
        lines.append("| " + " | ".join([f"{momentum:g}", *losses]) + " |")
    return "\n".join(lines) + "\n"


def _differs(name: str, variants: Sequence[Variant]) -> bool:
    return len({repr(getattr(variant.setting, name)) for variant in variants}) > 1


def _common(variants: Sequence[Variant]) -> str:
    """The settings that all have."""
    first = variants[0].setting
    same = [f"{HEADS[name]} {_cell(getattr(first, name))}" for name in HEADS
            if name not in _ALWAYS and getattr(first, name) is not None and not _differs(name, variants)
            and name != "options"]  # fmt: skip
    return f"All: {', '.join(same)}.\n\n" if same else ""


def _loss(variant: Variant | None) -> str:
    if variant is None:
        return "-"
    deviation = variant.deviation
    spread = "" if deviation is None else f" ± {deviation:.3f}"
    return f"{variant.loss:.3f}{spread}"


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {setting}" for name, setting in value.items()) or "-"
    if isinstance(value, float):
        return f"{value:.3g}"
    return "-" if value is None else str(value)


def _figures(variant: Variant, dense: Variant | None) -> list[str]:
    base = {row["seed"]: row["loss"] for row in dense.rows} if dense else {}
    pairs = [row["loss"] - base[row["seed"]] for row in variant.rows if row["seed"] in base]
    whole = variant.dense_bytes_per_step * variant.setting.steps
    return [
        _loss(variant),
        str(len(variant.rows)),
        f"{statistics.fmean(pairs):+.3f}" if pairs else "-",
        f"{variant.bytes_per_step:,.0f}",
        f"{variant.dense_bytes_per_step / variant.bytes_per_step:,.1f}x",
        f"{variant.bytes_total:,.0f}",
        f"{whole / variant.bytes_total:,.1f}x",
    ]


def tables(grids: Iterable[str], rows: Sequence[Row], width: int) -> str:
    """Every grid's heading and table. Dense training to compare with is that of "targets"."""
    dense = best_dense(measured(["targets"], rows, width))
    parts = []
    for name in grids:
        variants = measured([name], rows, width)
        if len(variants) > 1:  # else there is nothing to compare
            shown = pivot(variants) if name.startswith("momentum") else table(variants, dense)
            parts.append(f"### {TITLES[name]} (`{name}`)\n\n{_common(variants)}{shown}")
    return "\n".join(parts)


def put_into(page: str, text: str) -> str:
    """``page`` with ``text`` between its marks. Raises ResultsError where it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise results_file.ResultsError(f"the page has no {BEGIN.strip()} and {END.strip()}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; draw the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--file", type=Path, default=OUT, help="what language.py has written")
    parser.add_argument("--grid", default=",".join(GRIDS), help="with commas")
    parser.add_argument("--width", type=int, default=64, help="of the transformer")
    parser.add_argument("--page", type=Path, help="a Markdown file to write the tables into")
    parser.add_argument("--plot", type=Path, help="an SVG file to write")
    arguments = parser.parse_args(argv)
    grids = arguments.grid.split(",")
    if unknown := [name for name in grids if name not in GRIDS]:
        parser.error(f"--grid {','.join(unknown)}: choose of {', '.join(GRIDS)}")
    try:
        rows = results_file.load(arguments.file)
        text = tables(grids, rows, arguments.width)
        if arguments.page:
            written = put_into(arguments.page.read_text(), text)
            arguments.page.write_text(written)
    except (OSError, results_file.ResultsError) as error:
        print(f"language_tables.py: {error}", file=sys.stderr)
        return 2
    if not arguments.page:
        print(text)
    if arguments.plot:
        from language_picture import draw

        draw(measured(["targets", "rivals"], rows, arguments.width), arguments.plot)
        print(f"wrote {arguments.plot}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

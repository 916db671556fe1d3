"""What the recorded network table says about each method: the overheads that ``ggs plan`` uses.

    python benchmarks/network_fit.py [docs/results/network.jsonl]

Prints each method's fitted overhead beside the one in ``ggs.exchange.cost``, and each measured step
beside the prediction of ``ggs plan`` for it. The last line is JSON with the largest relative error.
"""

import argparse
import functools
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

from network import Row, read

from ggs.cli import plan
from ggs.exchange.cost import OVERHEADS, Network, Overhead

RATES = {"unshaped": 1e15, "1gbit": 0.95e9, "100mbit": 0.095e9}
"""Bits per second for TCP's content; its headers take 5 %."""
LATENCY, LOCAL = 50e-6, 8e9

shapes = functools.cache(plan.shapes)


def floors(rows: list[Row]) -> dict[tuple[str, str], float]:
    """Seconds of a step without communication by model and network."""
    return {(r["model"], r["network"]): r["step_ms"] / 1e3 for r in rows if r["method"] == "none"}


def overhead(rows: list[Row], method: str) -> Overhead:
    """The overhead that fits a method's rows best, in relative terms."""
    floor = floors(rows)
    arithmetic: list[tuple[float, float]] = []
    hidden: list[tuple[float, float]] = []
    overlaps = OVERHEADS[method].hidden is not None
    for row in rows:
        if row["method"] != method:
            continue
        step, base = row["step_ms"] / 1e3, floor[row["model"], row["network"]]
        wire = row["bytes"] * 8 / RATES[row["network"]]
        if not overlaps or row["network"] == "unshaped":
            arithmetic.append((shapes(row["model"]).numel / step, (step - base - wire) / step))
        else:  # here the network takes longer than the arithmetic
            hidden.append((base / step, (base + wire - step) / step))
    return Overhead(_slope(arithmetic), _slope(hidden) if overlaps else None)


def _slope(points: list[tuple[float, float]]) -> float:
    """Least squares through the origin, at least 0."""
    return max(0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points))


def predictions(rows: list[Row]) -> Iterator[tuple[Row, plan.Prediction]]:
    """What ``ggs plan`` predicts for every row but the floors, given these."""
    floor = floors(rows)
    for row in rows:
        if row["method"] == "none":
            continue
        cluster = plan.ClusterShape(row["hosts"], 0, Network(RATES[row["network"]], LATENCY, LOCAL))
        step = floor[row["model"], row["network"]]
        found = plan.predict(shapes(row["model"]), cluster, step)
        yield row, next(p for p in found if p.method == row["method"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path, default=Path("docs/results/network.jsonl"))
    rows = read(parser.parse_args().results)
    measured = floors(rows)
    for model in plan.FLOOR_SECONDS:
        mean = statistics.mean(s for (name, _), s in measured.items() if name == model)
        print(f"{model:12} floor {mean:.2f} s, in ggs.cli.plan {plan.FLOOR_SECONDS[model]:.2f} s")
    for method, used in OVERHEADS.items():
        print(f"{method:12} {overhead(rows, method)}\n{'in ggs.exchange.cost':12} {used}")
    worst = 0.0
    for row, prediction in predictions(rows):
        error = prediction.seconds * 1e3 / row["step_ms"] - 1
        worst = max(worst, abs(error))
        print(
            f"{row['model']:12} {row['network']:9} {row['method']:11} {row['step_ms']:9.1f} ms "
            f"{prediction.seconds * 1e3:9.1f} ms {error:+7.1%} "
            f"{prediction.node_bytes / row['bytes'] - 1:+7.1%} bytes"
        )
    print(json.dumps({"worst": round(worst, 3)}))


if __name__ == "__main__":
    main()

"""``ggs plan``: readable input, sensible predictions, and the recorded table within 25 %."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ggs import plan
from ggs.cli import app
from ggs.cost import OVERHEADS, Network, fit
from ggs.errors import ConfigurationError

RESULTS = Path("docs") / "results" / "network.jsonl"
RATES = {"unshaped": 1e15, "1gbit": 0.95e9, "100mbit": 0.095e9}


@pytest.mark.parametrize(
    ("text", "bits"),
    [("1Gbit", 1e9), ("100 Mbit/s", 1e8), ("2.5gbps", None), ("25gbit", 25e9), ("0bit", None)],
)
def test_bandwidth(text: str, bits: float | None) -> None:
    if bits is None:
        with pytest.raises(ConfigurationError, match="bandwidth"):
            plan.bandwidth(text)
    else:
        assert plan.bandwidth(text) == bits


def test_duration() -> None:
    assert plan.duration("50us") == pytest.approx(5e-5)
    with pytest.raises(ConfigurationError, match="latency"):
        plan.duration("fast")


def test_it_says_use_it_on_a_slow_network_and_do_not_on_a_fast_one() -> None:
    slow = plan.plan("alexnet", 4, 0, "100Mbit", "50us", None, 0.001, "fp32")
    assert "use GGS (allgather):" in slow.splitlines()[-1]
    fast = plan.plan("resnet50", 2, 8, "400Gbit", "5us", 250, 0.001, "fp32")
    assert fast.splitlines()[-1].startswith("don't use GGS: ")


def test_ten_thousand_workers() -> None:
    text = plan.plan("resnet50", 1250, 8, "25Gbit", "20us", 80, 0.001, "fp32")
    assert "1250 node(s) x 8 worker(s)" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 1, "gpus": 1}, "1 workers"),
        ({"nodes": 20_000}, "20,000 workers"),
        ({"model": "resnet5"}, "'resnet5' is no classifier"),
        ({"model": "vgg16"}, "no step of vgg16"),
        ({"step_ms": -1.0}, "step-ms: -1.0"),
        ({"density": 2.0}, "density: 2.0"),
    ],
)
def test_what_cannot_be_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "model": "alexnet", "nodes": 4, "gpus": 0, "bandwidth_text": "1Gbit", "latency_text": "50us",
        "step_ms": None, "density": 0.001, "values": "fp32", **change,
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match=message):
        plan.plan(**arguments)


def test_the_command() -> None:
    words = [
        "plan",
        "--model",
        "alexnet",
        "--nodes",
        "4",
        "--bandwidth",
        "1Gbit",
        "--step-ms",
        "770",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert "powersgd 4" in result.stdout


def recorded(root: Path) -> list[dict[str, Any]]:
    path = root / RESULTS
    if not path.exists():
        pytest.skip(f"{RESULTS} has not been recorded; run benchmarks/network.py")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_recorded_table_is_predicted_within_25_percent(root: Path) -> None:
    rows = recorded(root)
    floors = {(r["model"], r["network"]): r["step_ms"] / 1e3 for r in rows if r["method"] == "none"}
    for row in rows:
        if row["method"] == "none":
            continue
        network = Network(RATES[row["network"]], 50e-6, 8e9)
        cluster = plan.Cluster(row["hosts"], 0, network)
        floor = floors[row["model"], row["network"]]
        found = {p.method: p for p in plan.predict(plan.shapes(row["model"]), cluster, floor)}
        prediction = found[row["method"]]
        assert prediction.seconds == pytest.approx(row["step_ms"] / 1e3, rel=0.25), row
        assert prediction.node_bytes == pytest.approx(row["bytes"], rel=0.25), row


def test_the_overheads_are_those_of_the_recorded_table(root: Path) -> None:
    rows = recorded(root)
    floors = {(r["model"], r["network"]): r["step_ms"] / 1e3 for r in rows if r["method"] == "none"}
    sizes = {m: sum(map(plan.math.prod, plan.shapes(m))) for m in {r["model"] for r in rows}}
    for method, overhead in OVERHEADS.items():
        found = fit(
            [
                (
                    floors[r["model"], r["network"]],
                    r["step_ms"] / 1e3,
                    sizes[r["model"]],
                    0.0 if r["network"] == "unshaped" else r["bytes"] * 8 / RATES[r["network"]],
                )
                for r in rows
                if r["method"] == method
            ]
        )
        assert overhead.per_parameter == pytest.approx(found.per_parameter, abs=1e-9), method
        assert overhead.exposed == pytest.approx(found.exposed, abs=0.1), method

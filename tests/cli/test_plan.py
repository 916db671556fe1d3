"""``ggs plan``: readable input, sensible predictions, and the recorded table within 25 %."""

import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch import nn
from typer.testing import CliRunner

from ggs.cli import plan
from ggs.cli.main import app
from ggs.errors import ConfigurationError
from ggs.exchange import forecast
from ggs.exchange.cost import OVERHEADS, Network, Overhead
from ggs.text import readable_bytes
from ggs.train.dry_run import dry_run
from tests.train.test_dry_run import config_for, run
from tests.worker_pool import WorkerPool

RESULTS = Path("docs") / "results" / "network.jsonl"


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


def test_what_a_small_model_sends_is_shown_in_a_unit_that_fits() -> None:
    table = plan.plan("lenet5", 2, 0, "1Gbit", "50us", 3.0, 0.001, "fp32").splitlines()
    assert next(row for row in table if row.startswith("ggs")).split()[3:5] == ["387", "B"]
    assert next(row for row in table if row.startswith("ddp")).split()[3:5] == ["246.8", "kB"]


@pytest.mark.parametrize("bits", ["1kbit", "1000Tbit"])
@pytest.mark.parametrize("latency", ["0s", "60s"])
@pytest.mark.parametrize("step_ms", [1e-320, 86_400_000.0])
def test_the_table_of_the_outermost_values_has_numbers(
    bits: str, latency: str, step_ms: float
) -> None:
    for line in plan.plan("resnet50", 1250, 8, bits, latency, step_ms, 0.001, "fp32").splitlines():
        assert not re.search(r"\b(inf|nan)\b", line)
        assert len(line) < 140


def test_ten_thousand_workers() -> None:
    text = plan.plan("resnet50", 1250, 8, "25Gbit", "20us", 80, 0.001, "fp32")
    assert "1250 node(s) x 8 worker(s)" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 1, "gpus": 1}, "1 workers"),
        ({"nodes": 20_000}, "20,000 workers"),
        ({"nodes": 0}, "^nodes: 0 is not allowed; give at least 1$"),
        ({"gpus": -1}, "^gpus: -1"),
        ({"model": "resnet5"}, "model: resnet5 is unknown, did you mean resnet"),
        ({"model": "ggs.train.models:CifarAlexnet", "step_ms": 9.0}, "did you mean CifarAlexNet"),
        ({"model": "vgg16"}, "no step of vgg16"),
        ({"step_ms": -1.0}, "step-ms: -1.0"),
        ({"step_ms": 1e308}, r"^step-ms: 1e\+308 is .* at most 86400000 \(a day\)$"),
        ({"step_ms": float("nan")}, "^step-ms: nan is"),
        ({"latency_text": "9" * 400 + "s"}, r"^latency: '9{37}\.\.\.' is .* at most 60 s$"),
        ({"latency_text": "60.1s"}, "^latency: '60.1s' is not allowed"),
        ({"latency_text": "x" * 400}, r"^latency: 'x{37}\.\.\.' is not readable"),
        ({"bandwidth_text": "9" * 400 + "bit"}, r"^bandwidth: '9{37}\.\.\.' is .* 1 kbit to"),
        ({"bandwidth_text": "0." + "0" * 300 + "1bit"}, "^bandwidth: '0.0+[.]+' is .* 1 kbit to"),
        ({"density": 2.0}, "density: 2 is not"),
        ({"every": 0}, "every: 0 is not allowed; give 1 to 10,000 steps between two exchanges"),
        ({"density": 0.0}, "density: 0 is not allowed; give a share above 0 and at most 1"),
    ],
)
def test_what_cannot_be_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "model": "alexnet", "nodes": 4, "gpus": 0, "bandwidth_text": "1Gbit", "latency_text": "50us",
        "step_ms": None, "density": 0.001, "values": "fp32", **change,
    }  # fmt: skip
    with pytest.raises(ConfigurationError, match=message):
        plan.plan(**arguments)


@pytest.mark.parametrize(
    ("model", "numel"),
    [
        ("lenet5", 61_706),
        ("cifarnet", 145_578),
        ("alexnet", 61_100_840),
        ("regnet_y_400mf", 4_344_144),
        ("ggs.train.models:CifarAlexNet", 2_472_266),
        ("tests.train.test_loop:small_batchnorm_model", None),  # has to be told num_classes
    ],
)
def test_models_of_torchvision_of_ggs_and_of_ones_own(model: str, numel: int | None) -> None:
    found = plan.shapes(model).numel
    assert found == numel if numel else found > 0


def model_with_batchnorm() -> nn.Module:
    """Three kinds of parameters: shared ones, batch norm's, and frozen ones."""
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 16), nn.BatchNorm1d(16), nn.Linear(16, 16), nn.Linear(16, 10)
    )
    model[3].requires_grad_(False)
    return model


def wide_model() -> nn.Module:
    """Large enough for an exchange by index range."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 2000), nn.Linear(2000, 10))


def test_batch_norm_and_what_is_frozen_is_told_apart() -> None:
    found = plan.shapes("tests.cli.test_plan:model_with_batchnorm")
    assert found.shared == ((16, 784), (16,), (10, 16), (10,))
    assert found.batchnorm == ((16,), (16,))
    assert found.numel == 784 * 16 + 16 + 170 + 32
    assert plan.shapes("densenet121").numel == 7_978_856


def _predicted(
    model: str, nodes: int, density: float, every: int = 1
) -> dict[str, plan.Prediction]:
    cluster = plan.ClusterShape(nodes, 0, Network(1e9, 50e-6, 8e9))
    found = plan.predict(plan.shapes(model), cluster, 1.0, density, every=every)
    return {prediction.method: prediction for prediction in found}


@pytest.mark.parametrize("model", ["lenet5", "tests.cli.test_plan:model_with_batchnorm"])
@pytest.mark.parametrize(("nodes", "density"), [(2, 0.001), (4, 0.01)])
def test_bytes_are_those_of_the_dry_run_and_of_the_run(
    tmp_path: Path, workers: WorkerPool, model: str, nodes: int, density: float
) -> None:
    found = _predicted(model, nodes, density)
    settings = {"model": model, "density": density}
    told = dry_run(config_for(workers=nodes, **settings)).traffic
    assert found["ggs"].node_bytes == told.bytes_sent
    assert int(found["ddp"].node_bytes) == told.dense_bytes
    config = config_for(
        run_dir=tmp_path, log_every=1, evaluate_every=0, tensorboard=False, **settings
    )
    assert workers.run(nodes, run, config)[0] == [found["ggs"].node_bytes] * 3


def test_local_steps_are_told_by_exchange_and_by_step() -> None:
    each, local = _predicted("lenet5", 4, 0.01)["ggs"], _predicted("lenet5", 4, 0.01, 4)["ggs"]
    told = dry_run(config_for(workers=4, density=0.01, every=4)).traffic
    assert local.node_bytes == told.bytes_sent / 4
    assert local.exchange == f"allgather, every 4 steps {readable_bytes(told.bytes_sent)}"
    assert local.seconds == pytest.approx(1.0 + (each.seconds - 1.0) / 4, rel=1e-6)
    text = plan.plan("resnet50", 4, 8, "1Gbit", "50us", 150, 0.001, "fp32", every=8)
    assert "every 8 steps" in text
    assert "hierarchical" not in text


def test_bytes_by_index_range_are_those_of_the_dry_run() -> None:
    model = "tests.cli.test_plan:wide_model"
    found = _predicted(model, 64, 0.05)["ggs"]
    told = dry_run(config_for(workers=64, batch_size=2, model=model, density=0.05)).traffic
    assert (found.exchange, found.node_bytes) == (told.exchange, told.bytes_sent)
    assert found.exchange == "split"


@pytest.mark.parametrize("bandwidth", ["100Mbit", "25Gbit", "400Gbit"])
def test_the_exchange_is_the_librarys_whatever_the_network(bandwidth: str) -> None:
    """It does not know how fast the network is; and it takes hierarchical only where it is asked for."""
    text = plan.plan("resnet50", 4, 8, bandwidth, "50us", 150, 0.001, "fp32")
    chosen, _ = forecast.choose(25_557_032, 25_557, 32, 8, "fp32", "cuda")
    rows = [line for line in text.splitlines() if line.startswith("ggs ")]
    assert [row.split()[5] for row in rows] == [chosen, "exchange=hierarchical,"]
    assert rows[1].endswith("exchange=hierarchical, allgather between the nodes")


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 8), (8, 1), (8, 0)])
def test_no_hierarchical_where_nothing_is_averaged_or_nothing_leaves_the_node(
    nodes: int, gpus: int
) -> None:
    text = plan.plan("resnet50", nodes, gpus, "1Gbit", "50us", 150, 0.001, "fp32")
    assert "hierarchical" not in text


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        ((1.0, 0.96, 1.2), "use GGS (split): 1.20 x as fast as the best rival, ddp"),
        ((1.0, 0.9, 1.2), "use GGS with exchange=hierarchical: 1.33 x as fast"),
        ((1.0, 0.98, 1.04), "use GGS with exchange=hierarchical: 1.06 x as fast"),
        (
            (1.0, 0.99, 1.02),
            "don't use GGS: GGS takes 1000.0 ms a step, ddp 1020.0 ms; it should be 1.05 x",
        ),
        ((1.0, 0.9, 0.8), "GGS with exchange=hierarchical takes 900.0 ms a step, ddp 800.0 ms"),
        ((1.0, 1.5, 1.2), "use GGS (split): 1.20 x"),
    ],
)
def test_the_verdict_names_the_setting_that_it_needs(
    seconds: tuple[float, float, float], says: str
) -> None:
    split, tiers, ddp = seconds
    setting = "exchange=hierarchical"
    rows = [
        plan.Prediction("ggs", split, 1.0, "split"),
        plan.Prediction("ggs", tiers, 1.0, f"{setting}, split between the nodes", setting),
        plan.Prediction("ddp", ddp, 9.0),
    ]
    assert says in plan.verdict(rows)


def test_times_on_gpus_are_called_estimates() -> None:
    text = plan.plan("lenet5", 2, 1, "1Gbit", "50us", 5, 0.001, "fp32")
    assert "times on GPUs are estimates: the arithmetic is assumed 40 times as fast" in text
    assert "estimates" not in plan.plan("lenet5", 2, 0, "1Gbit", "50us", 5, 0.001, "fp32")


@pytest.mark.parametrize(
    "wrong", [["--bandwidth", "fast"], ["--nodes", "0"], ["--density", "0"], ["--model", "resnet5"]]
)
def test_a_wrong_argument_is_told_without_importing_torch(wrong: list[str]) -> None:
    words = ["plan", "--model", "alexnet", "--nodes", "4", "--bandwidth", "1Gbit", *wrong]
    code = f"""
import sys
from ggs.cli.main import app
from ggs.errors import ConfigurationError
try:
    app({words})
except ConfigurationError as error:
    print("torch" in sys.modules, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"False {wrong[0][2:]}: "), done.stdout


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


def test_the_example_in_the_documentation_is_what_it_prints(root: Path) -> None:
    page = (root / "docs" / "performance.md").read_text()
    found = re.search(r"```sh\nggs (plan .*)\n```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert found is not None
    assert CliRunner().invoke(app, found[1].split()).stdout == found[2]


@pytest.fixture
def network_fit(benchmark: Callable[[str], ModuleType]) -> ModuleType:
    """The benchmark that reads the recorded table."""
    return benchmark("network_fit")


def test_the_recorded_table_is_predicted_within_25_percent(
    root: Path, network_fit: ModuleType
) -> None:
    for row, prediction in network_fit.predictions(network_fit.read(root / RESULTS)):
        assert prediction.seconds == pytest.approx(row["step_ms"] / 1e3, rel=0.25), row
        assert prediction.node_bytes == pytest.approx(row["bytes"], rel=0.25), row


def test_the_overheads_are_those_of_the_recorded_table(root: Path, network_fit: ModuleType) -> None:
    rows = network_fit.read(root / RESULTS)
    for method, overhead in OVERHEADS.items():
        found = network_fit.overhead(rows, method)
        assert overhead.per_parameter == pytest.approx(found.per_parameter, abs=1e-9), method
        assert (overhead.hidden or 0) == pytest.approx(found.hidden or 0, abs=0.05), method


@pytest.mark.parametrize(
    ("method", "truth"),
    [("ddp", Overhead(1e-8, 0.3)), ("ggs", Overhead(2e-9)), ("ggs", Overhead(0))],
)
def test_the_fit_finds_what_made_the_measurements(
    network_fit: ModuleType, method: str, truth: Overhead
) -> None:
    noise = random.Random(0)
    rows = []
    for model, floor in plan.FLOOR_SECONDS.items():
        numel = plan.shapes(model).numel
        for network, rate in network_fit.RATES.items():
            sent = 8 * numel if method == "ddp" else 0.01 * numel
            step = truth.seconds(floor, truth.per_parameter * numel, sent * 8 / rate)
            own = {"model": model, "network": network, "hosts": 4}
            rows += [
                {**own, "method": "none", "step_ms": floor * 1e3, "bytes": 0},
                {**own, "method": method, "bytes": sent,
                 "step_ms": step * 1e3 * noise.uniform(0.99, 1.01)},
            ]  # fmt: skip
    found = network_fit.overhead(rows, method)
    assert found.per_parameter == pytest.approx(truth.per_parameter, abs=5e-10)
    assert found.hidden == (truth.hidden and pytest.approx(truth.hidden, abs=0.05))

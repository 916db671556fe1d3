"""``ggs plan``: does GGS pay on a given cluster? Bytes, step time and speed-up of it and its rivals.

The arithmetic, and the share of the step behind which communication hides, are those measured by
``benchmarks/network.py``; on GPUs the arithmetic is scaled by the speed of memory. GGS's exchange is the one
that the library itself chooses, and its bytes are those of ``ggs train --dry-run`` for a model in float32:
exact for an all-gather, of the worker that sends most at first for a split. DDP's are those of rings.
Imports no torch until the arguments are checked.
"""

import inspect
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ggs.errors import ConfigurationError
from ggs.exchange.cost import (
    ELEMENT_SECONDS,
    GPU_SPEEDUP,
    MESSAGE_SECONDS,
    OVERHEADS,
    ExchangeCost,
    Network,
    ring_bytes,
)
from ggs.optim.schedule import selected_count
from ggs.text import readable_bytes, shorten
from ggs.train.names import known_models, require_model

MEASURED_WORKERS = 4
FLOOR_SECONDS = {"alexnet": 0.90, "resnet50": 0.98, "densenet121": 0.59}
"""Steps without communication of the benchmark's CPU workers (batch 4), where none is given."""
_OWN = {
    "lenet5": {"num_classes": 10, "in_channels": 1, "image_size": 28},
    "cifarnet": {"num_classes": 10, "image_size": 32},
}
MARGIN = 1.05
"""How many times faster than the best rival GGS must be to be worth its change of the training."""
MOST_WORKERS = 10_000
MOST_LOCAL_STEPS = 10_000
BUCKET_BYTES = 25e6
BANDWIDTHS = 1e3, 1e15
"""Least and most bits per second."""
LONGEST_LATENCY = 60.0
LONGEST_STEP = 86_400.0
"""Seconds."""


@dataclass(frozen=True)
class ClusterShape:
    """``nodes`` hosts with ``gpus`` GPUs each (0: one CPU worker) and their network."""

    nodes: int
    gpus: int
    network: Network

    @property
    def local(self) -> int:
        """Workers per node."""
        return max(1, self.gpus)

    @property
    def workers(self) -> int:
        """Workers in all."""
        return self.nodes * self.local


@dataclass(frozen=True)
class Prediction:
    """One method's step: seconds, bytes that a node sends to others, the exchange in words, and the setting
    that asks for it where it is not the default.
    """

    method: str
    seconds: float
    node_bytes: float
    exchange: str = ""
    setting: str = ""


@dataclass(frozen=True)
class Shapes:
    """Shapes of a model's trained parameters: batch norm's, which GGS never sends, and the shared ones."""

    shared: tuple[tuple[int, ...], ...]
    batchnorm: tuple[tuple[int, ...], ...] = ()

    @property
    def all(self) -> tuple[tuple[int, ...], ...]:
        """Both."""
        return self.shared + self.batchnorm

    @property
    def numel(self) -> int:
        """Elements of all."""
        return sum(map(math.prod, self.all))


def bandwidth(text: str) -> float:
    """Bits per second of "1Gbit", "100Mbit/s", "2.5 Gbit". Raises ConfigurationError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)bit(?:/s|ps)?\s*", text, re.IGNORECASE)
    if not match or float(match[1]) <= 0:
        raise ConfigurationError(
            f"bandwidth: {shorten(text, 40)!r} is not readable; give it as 1Gbit or 100Mbit"
        )
    bits = float(match[1]) * 1000.0 ** "_kmgt".index(match[2].lower() or "_")
    if not BANDWIDTHS[0] <= bits <= BANDWIDTHS[1]:
        raise ConfigurationError(
            f"bandwidth: {shorten(text, 40)!r} is not allowed; give 1 kbit to 1000 Tbit a second"
        )
    return bits


def duration(text: str) -> float:
    """Seconds of "50us", "0.1ms", "2 s". Raises ConfigurationError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s)\s*", text, re.IGNORECASE)
    if not match:
        raise ConfigurationError(
            f"latency: {shorten(text, 40)!r} is not readable; give it as 50us or 0.2ms"
        )
    seconds = float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2].lower()]
    if seconds > LONGEST_LATENCY:
        raise ConfigurationError(
            f"latency: {shorten(text, 40)!r} is not allowed; give at most {LONGEST_LATENCY:g} s"
        )
    return seconds


def shapes(model: str) -> Shapes:
    """Those of a classifier of torchvision, of lenet5 or cifarnet as for their own images, or of what
    ``package.module:function`` gives with its defaults. Raises ConfigurationError.
    """
    import torch

    from ggs.optim.batchnorm import local_parameters
    from ggs.train import models, user_model

    given: dict[str, Any] = {
        "num_classes": 1000,
        "in_channels": 3,
        "image_size": 224,
        **_OWN.get(model, {}),
    }
    if ":" in model:
        function, required = user_model.builder(model), set()
        with suppress(TypeError, ValueError):  # a built-in one has no signature
            parameters = inspect.signature(function).parameters.values()
            required = {p.name for p in parameters if p.default is p.empty}
        built = user_model.build(model, {k: v for k, v in given.items() if k in required}, {})
    else:
        try:
            with torch.device("meta"):
                built = models.build(model, **given, options={})
        except NotImplementedError:  # the RegNets compute with tensors while they are built
            built = models.build(model, **given, options={})
    local = local_parameters(built, "average")
    trained = [parameter for parameter in built.parameters() if parameter.requires_grad]
    return Shapes(
        tuple(tuple(parameter.shape) for parameter in trained if parameter not in local),
        tuple(tuple(parameter.shape) for parameter in trained if parameter in local),
    )


def powersgd_bytes(parameters: Sequence[tuple[int, ...]], rank: int) -> float:
    """Bytes that PowerSGD all-reduces: two factors of each matrix worth it, and the rest whole."""
    total = 0
    for shape in parameters:
        rows = shape[0] if shape else 1
        columns = math.prod(shape[1:])
        small = (rows + columns) * min(rank, rows, columns)
        total += small if len(shape) > 1 and 2 * small < rows * columns else rows * columns
    return 4.0 * total


def predict(
    model: Shapes,
    cluster: ClusterShape,
    floor: float,
    density: float = 0.001,
    values: str = "fp32",
    every: int = 1,
) -> list[Prediction]:
    """What a step of each method takes, GGS first.

    Args:
        floor: seconds of a step without communication.
        every: steps from one of GGS's exchanges to the next: its figures are means of so many steps, of
            which the local ones are reckoned as steps without communication.
    """
    numel, network = model.numel, cluster.network
    speedup = GPU_SPEEDUP if cluster.gpus else 1.0
    rivals = []
    for method, nbytes, rounds in (
        ("ddp", 4.0 * numel, 4.0 * numel / BUCKET_BYTES),
        ("ddp bf16", 2.0 * numel, 4.0 * numel / BUCKET_BYTES),
        ("powersgd 1", powersgd_bytes(model.all, 1), 3),
        ("powersgd 4", powersgd_bytes(model.all, 4), 3),
    ):
        overhead = OVERHEADS[method]
        sent = ring_bytes(nbytes, cluster.workers)
        wire = sent * 8 / (network.bandwidth if cluster.nodes > 1 else network.local)
        hops = 2 * math.ceil(math.log2(cluster.workers))  # down and up a tree
        wire += hops * max(1, math.ceil(rounds)) * network.latency
        arithmetic = overhead.per_parameter * numel / speedup
        seconds = overhead.seconds(floor, arithmetic, wire)
        rivals.append(Prediction(method, seconds, sent if cluster.nodes > 1 else 0.0))
    return [*_ggs(model, cluster, floor, density, values, every), *rivals]


def _ggs(
    model: Shapes, cluster: ClusterShape, floor: float, density: float, values: str, every: int
) -> list[Prediction]:
    """GGS as the library runs it by itself, and hierarchical where there are nodes of several GPUs, unless
    there are local steps, which hierarchical has none of.
    """
    from ggs.exchange.forecast import choose, hierarchical_cost  # imports torch
    from ggs.optim.flat import padded

    device = "cuda" if cluster.gpus else "cpu"
    numel = sum(padded(math.prod(shape), 4, device) for shape in model.shared)
    sizes = numel, selected_count(numel, density)

    name, cost = choose(*sizes, cluster.workers, cluster.local, values, device)
    seconds, node_bytes = _step(model, cost, sizes[1], cluster, floor, every)
    if every > 1:
        name = f"{name}, every {every:,} steps {readable_bytes(node_bytes)}"
        seconds, node_bytes = floor + (seconds - floor) / every, node_bytes / every
    predictions = [Prediction("ggs", seconds, node_bytes, name)]
    if cluster.nodes > 1 and cluster.gpus > 1 and every == 1:
        name, cost = hierarchical_cost(*sizes, cluster.nodes, cluster.gpus, values, device)
        step = _step(model, cost, sizes[1], cluster, floor)
        setting = "exchange=hierarchical"
        predictions.append(
            Prediction("ggs", *step, f"{setting}, {name} between the nodes", setting)
        )
    return predictions


def _step(
    model: Shapes,
    cost: ExchangeCost,
    count: int,
    cluster: ClusterShape,
    floor: float,
    every: int = 1,
) -> tuple[float, float]:
    """Seconds of a step with an exchange of ``count`` elements, and bytes that a node sends to others."""
    from ggs.optim.digest import agreement_bytes

    overhead, network = OVERHEADS["ggs"], cluster.network
    speedup = GPU_SPEEDUP if cluster.gpus else 1.0
    agreement = int(ring_bytes(agreement_bytes(len(model.shared), every), cluster.workers))
    node_bytes = cost.node_bytes(cluster.local) + agreement
    wire = node_bytes * 8 / (network.bandwidth if cluster.nodes > 1 else network.local)
    wire += cost.local_bytes * 8 / network.local + cost.rounds * network.latency
    # What the benchmark's few workers already show of coding and adding is in the arithmetic.
    elements = max(0.0, cost.elements - (MEASURED_WORKERS + 1) * count) * ELEMENT_SECONDS
    messages = max(0, cost.messages - (MEASURED_WORKERS + 1)) * MESSAGE_SECONDS
    arithmetic = (overhead.per_parameter * model.numel + elements) / speedup + messages
    seconds = overhead.seconds(floor, arithmetic, wire)
    return seconds, node_bytes if cluster.nodes > 1 else 0.0


def verdict(predictions: list[Prediction]) -> str:
    """One sentence: use GGS, or don't, and why."""
    ours = [p for p in predictions if p.method == "ggs"]
    best = min((p for p in predictions if p.method != "ggs"), key=lambda rival: rival.seconds)
    ggs, fastest = ours[0], min(ours, key=lambda method: method.seconds)
    # A setting that changes the algorithm must be worth it, or be what makes GGS pay.
    makes_it_pay = best.seconds / ggs.seconds < MARGIN <= best.seconds / fastest.seconds
    if makes_it_pay or ggs.seconds / fastest.seconds >= MARGIN:
        ggs = fastest
    ratio = best.seconds / ggs.seconds
    if ratio >= MARGIN:
        how = f"with {ggs.setting}" if ggs.setting else f"({ggs.exchange})"
        return f"use GGS {how}: {ratio:.2f} x as fast as the best rival, {best.method}"
    how = f"GGS with {ggs.setting}" if ggs.setting else "GGS"
    return (
        f"don't use GGS: {how} takes {ggs.seconds * 1e3:.1f} ms a step, {best.method} "
        f"{best.seconds * 1e3:.1f} ms; it should be {MARGIN:.2f} x as fast"
    )


def plan(
    model: str,
    nodes: int,
    gpus: int,
    bandwidth_text: str,
    latency_text: str,
    step_ms: float | None,
    density: float,
    values: str,
    every: int = 1,
) -> str:
    """The table and the verdict, as text. Raises ConfigurationError for what cannot be."""
    cluster = _cluster(nodes, gpus, bandwidth_text, latency_text)
    floor = _checked_floor(model, gpus, step_ms, density)
    if not 1 <= every <= MOST_LOCAL_STEPS:
        raise ConfigurationError(
            f"every: {every} is not allowed; give 1 to {MOST_LOCAL_STEPS:,} steps between two exchanges"
        )
    parameters = shapes(model)
    predictions = predict(parameters, cluster, floor, density, values, every)
    assumed = "assumed: give --step-ms, and take the times as orders of magnitude"
    lines = [
        f"{model}: {parameters.numel:,} parameters on {nodes} node(s) x {cluster.local} worker(s), "
        f"{bandwidth_text} and {latency_text} between nodes",
        f"step without communication: {floor * 1e3:.1f} ms ({assumed if step_ms is None else 'given'})",
        *_table(predictions),
    ]
    if gpus:
        lines.append(
            f"times on GPUs are estimates: the arithmetic is assumed {GPU_SPEEDUP:g} times as fast as on the "
            "CPUs it was measured on"
        )
    return "\n".join([*lines, verdict(predictions)])


def _cluster(nodes: int, gpus: int, bandwidth_text: str, latency_text: str) -> ClusterShape:
    if nodes < 1:
        raise ConfigurationError(f"nodes: {nodes} is not allowed; give at least 1")
    if gpus < 0:
        raise ConfigurationError(
            f"gpus: {gpus} is not allowed; give those of each node, 0 for one CPU worker each"
        )
    network = Network(bandwidth(bandwidth_text), duration(latency_text), 400e9 if gpus else 8e9)
    cluster = ClusterShape(nodes, gpus, network)
    if not 2 <= cluster.workers <= MOST_WORKERS:
        raise ConfigurationError(
            f"{cluster.workers:,} workers: give 2 to {MOST_WORKERS:,} of them, nodes x GPUs"
        )
    return cluster


def _checked_floor(model: str, gpus: int, step_ms: float | None, density: float) -> float:
    """Seconds of a step without communication; raises ConfigurationError for what is wrong with these."""
    if not 0 < density <= 1:
        raise ConfigurationError(
            f"density: {density:g} is not allowed; give a share above 0 and at most 1"
        )
    if ":" not in model and (known := known_models()):
        require_model(model, known)
    if step_ms is None:
        if model not in FLOOR_SECONDS:
            raise ConfigurationError(
                f"step-ms: no step of {model} has been measured; give its milliseconds without "
                "communication (forward, backward, optimizer)"
            )
        return FLOOR_SECONDS[model] / (GPU_SPEEDUP if gpus else 1.0)
    if not 0 < step_ms <= LONGEST_STEP * 1e3:
        raise ConfigurationError(
            f"step-ms: {step_ms} is not allowed; give a number above 0, at most "
            f"{LONGEST_STEP * 1e3:.0f} (a day)"
        )
    return step_ms / 1e3


def _table(predictions: list[Prediction]) -> list[str]:
    dense = next(p.seconds for p in predictions if p.method == "ddp")
    return [
        f"{'':14}{'step ms':>10}{'x ddp':>8}{'a node sends':>15}",
        *(
            f"{p.method:14}{p.seconds * 1e3:10.1f}{dense / p.seconds:8.2f}{readable_bytes(p.node_bytes):>15}"
            f"{'  ' + p.exchange if p.exchange else ''}"
            for p in predictions
        ),
    ]

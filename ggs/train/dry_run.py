"""``ggs train --dry-run``: everything checked, one step tried on a model that is thrown away.

What is sent is exact, or within a few percent where it goes by index range: it follows from the
numbers of elements and workers alone.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ggs.dist.lockstep import alone
from ggs.launch.launcher import visible_devices
from ggs.launch.placement import is_worker, place
from ggs.optim.base import DistributedOptimizer
from ggs.optim.ggs import GGS
from ggs.optim.schedule import selected_count
from ggs.text import readable_bytes
from ggs.train import data
from ggs.train.check import check_batch
from ggs.train.config import TrainConfig
from ggs.train.console import duration
from ggs.train.launch_options import launch_options
from ggs.train.loop import RunPlan, Trainer
from ggs.train.optimizers import build_optimizer, distribute
from ggs.train.summary import device_name
from ggs.train.traffic import Traffic, TrafficForecast, WholeRun
from ggs.train.worker import build_model, pick_device

Kind = Literal["sparse", "dense", "local", "frozen"]


@dataclass(frozen=True)
class Parameter:
    """One tensor of the model: how it is exchanged, and how many of its elements travel."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    sent: int | None
    """Elements per step after the warm-up; None where the selection is from the whole model."""

    @property
    def numel(self) -> int:
        """Elements."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True)
class DryRun:
    """What a run would be. Memory in bytes of one worker."""

    config: TrainConfig
    plan: RunPlan
    workers: int
    tasks: int
    device: str
    backend: str
    images: tuple[int, int]
    parameters: tuple[Parameter, ...]
    density: float
    values: str
    traffic: Traffic
    """Of a step after the density warm-up."""
    whole_run: WholeRun
    memory: dict[str, int]
    seconds: float
    """Of the step that was tried, the first one."""


def dry_run(config: TrainConfig) -> DryRun:
    """Check ``config`` as far as one process can. Raises children of GGSError; writes nothing."""
    workers, local, backend = _world(config)
    device = pick_device(config, 0)
    spec = data.spec(config)
    images = data.load(config, spec, device)
    check_batch(config, len(images[0]), workers)
    plan = RunPlan.of(config, len(images[0]), workers)
    model = build_model(config, spec, device)
    inner = build_optimizer(config, model.parameters())
    optimizer = distribute(config, inner, model, plan.density_warmup, alone())
    one_step = RunPlan(1, plan.steps_per_epoch, plan.density_warmup, 0, 0)
    trainer = Trainer(config, one_step, model, optimizer, images, optimizer.collectives, device)
    with _activations(model) as activations:
        trainer.run()
        trainer.exchange_rest()
    memory = _memory(model, optimizer, activations[0], device)
    forecast = TrafficForecast(config, optimizer, workers, local)
    return DryRun(
        config=config,
        plan=plan,
        workers=workers,
        tasks=workers // local,
        device=device_name(device),
        backend=backend,
        images=(len(images[0]), len(images[1])),
        parameters=tuple(_parameters(config, model, optimizer, forecast.density)),
        density=forecast.density,
        values=forecast.values,
        traffic=forecast.step(forecast.density),
        whole_run=forecast.run(plan.steps, plan.density_warmup),
        memory=memory,
        seconds=trainer.state.training_seconds,
    )


def _world(config: TrainConfig) -> tuple[int, int, str]:
    """Workers, workers of this task, and the backend, as the launcher would choose them."""
    if is_worker(os.environ):
        size = int(os.environ["WORLD_SIZE"])
        return size, int(os.environ.get("LOCAL_WORLD_SIZE", size)), config.backend
    placement = place(os.environ, launch_options(config), visible_devices())
    return placement.world_size, placement.local_world_size, placement.backend


def _parameters(
    config: TrainConfig, model: nn.Module, optimizer: DistributedOptimizer, density: float
) -> Iterator[Parameter]:
    shared = {name for name, _ in optimizer.shared}
    for name, parameter in model.named_parameters():
        numel, shape = parameter.numel(), tuple(parameter.shape)
        if not parameter.requires_grad:
            yield Parameter(name, shape, "frozen", 0)
        elif name not in shared:
            yield Parameter(name, shape, "local", 0)
        elif config.method == "dense" or numel < config.dense_below:
            yield Parameter(name, shape, "dense", numel)
        else:
            sent = selected_count(numel, density) if config.scope == "tensor" else None
            yield Parameter(name, shape, "sparse", sent)


@contextmanager
def _activations(model: nn.Module) -> Iterator[list[int]]:
    """Inside, counts the bytes that autograd keeps for backward passes, weights not counted."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}
    most = [0]

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            most[0] = max(most[0], sum(kept.values()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield most


def _memory(
    model: nn.Module, optimizer: DistributedOptimizer, activations: int, device: torch.device
) -> dict[str, int]:
    def total(tensors: Iterator[Tensor] | list[Tensor]) -> int:
        return sum(tensor.nbytes for tensor in tensors)

    states = [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    residual = getattr(optimizer, "residual", None)
    velocity = getattr(optimizer, "velocity", None)
    memory = {
        "weights": total([*model.parameters(), *model.buffers()]),
        "gradients": total([p for p in model.parameters() if p.requires_grad]),
        "optimizer": total(states),
        "residual": total([t for t in (residual, velocity) if t is not None]),
        "local steps": _local_steps(optimizer),
        "activations": activations,
    }
    if device.type == "cuda":
        memory["peak"] = torch.cuda.max_memory_allocated(device)
    return memory


def _local_steps(optimizer: DistributedOptimizer) -> int:
    local = optimizer.local_steps if isinstance(optimizer, GGS) else None
    return local.nbytes if local else 0


def describe(run: DryRun) -> str:
    """The text that a person sees."""
    config, plan, traffic = run.config, run.plan, run.traffic
    layers = [_row(parameter, config) for parameter in run.parameters]
    widths = [max(map(len, column)) for column in zip(*layers, strict=True)]
    lines = [
        "  "
        + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in layers
    ]
    batch = config.batch_size * config.accumulate * run.workers
    text = {
        "model": f"{config.model}, {sum(p.numel for p in run.parameters):,} parameters in "
        f"{_tensors(len(run.parameters))}",
        "data": f"{config.data}, {run.images[0]:,} training and {run.images[1]:,} test images",
        "workers": f"{run.workers} on {run.tasks} task{'s' if run.tasks > 1 else ''}, "
        f"{run.device}, {run.backend}",
        "run": f"{plan.steps:,} steps of {batch:,} images ({plan.steps_per_epoch:,} steps per epoch)"
        + (f", density warm-up {plan.density_warmup:,} steps" if plan.density_warmup else ""),
        **_exchange_text(run),
        "memory": ", ".join(
            f"{name} {readable_bytes(count)}" for name, count in run.memory.items() if count
        ),
    }
    lines += ["", *(f"  {name:10}{value}" for name, value in text.items())]
    lines += ["", f"Everything is in order. One step was tried ({duration(run.seconds)}, the first "
              "one is slow); nothing was trained or written."]  # fmt: skip
    if run.workers == 1:
        lines.append("One worker sends nothing: --workers N shows what N would.")
    elif config.method != "dense" and traffic.bytes_sent > traffic.dense_bytes * config.every:
        lines.append("This sends more than dense training would: lower the density.")
    if warning := plan.warning(config):
        lines.append(warning)
    return "\n".join(lines)


def _exchange_text(run: DryRun) -> dict[str, str]:
    config, traffic, whole = run.config, run.traffic, run.whole_run
    warms_up = run.plan.density_warmup > 0
    parts = {}
    meaning = {
        "sparse": f"of which {traffic.elements:,} are sent (density {run.density:.4g}, "
        f"{config.scope}, {run.values}, {traffic.exchange})",
        "dense": "sent whole every step",
        "local": f"never sent: batch norm, {config.batchnorm}",
        "frozen": "not trained",
    }
    for kind, words in meaning.items():
        members = [p for p in run.parameters if p.kind == kind]
        if members:
            elements = sum(p.numel for p in members)
            parts[kind] = f"{elements:,} elements in {_tensors(len(members))}, {words}"
    if run.workers > 1:
        about, after = "" if traffic.exact else "about ", " after the warm-up" if warms_up else ""
        parts["sends"] = (
            f"{about}{traffic.bytes_sent:,} B per worker and step{after}; {_dense(traffic)}"
        )
        if config.every > 1:
            parts["sends"] = (
                f"{about}{traffic.bytes_sent:,} B per worker and exchange{after}, every {config.every:,} "
                f"steps: {traffic.bytes_sent / config.every:,.0f} B per step; {_dense(traffic, config.every)}"
            )
        parts["whole run"] = (
            f"{'' if whole.exact else 'about '}{readable_bytes(whole.bytes_sent)} per worker"
            f"{', warm-up included' if warms_up else ''}; {_dense(whole)}"
        )
    return parts


def _dense(sent: Traffic | WholeRun, steps: int = 1) -> str:
    """Dense training beside what is sent in so many steps."""
    ratio = sent.dense_bytes * steps / sent.bytes_sent
    return f"dense training {readable_bytes(sent.dense_bytes)}, {ratio:,.1f} times as much"


def _row(parameter: Parameter, config: TrainConfig) -> tuple[str, str, str, str, str]:
    shape = " x ".join(map(str, parameter.shape)) or "scalar"
    sent = f"k = {parameter.sent:,}" if parameter.kind == "sparse" and parameter.sent else ""
    return parameter.kind, parameter.name, shape, f"{parameter.numel:,}", sent


def _tensors(count: int) -> str:
    return f"{count:,} tensor{'s' if count != 1 else ''}"

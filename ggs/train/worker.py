"""One worker process: joins the process group, trains, writes the results, leaves."""

import os
import platform
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ggs import __version__
from ggs.batchnorm import batchnorm_modules
from ggs.collectives import Collectives, ProcessGroup
from ggs.train import data, models, seeds
from ggs.train.check import check_batch
from ggs.train.config import TrainConfig
from ggs.train.evaluate import evaluate_replicas
from ggs.train.optimizers import build_optimizer, distribute
from ggs.train.progress import Reporter
from ggs.train.runs import RunFolder
from ggs.train.trainer import Plan, Trainer


def main(config: TrainConfig) -> None:
    """Train as one of the workers that RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT describe; alone, without a process group, where they are not set.

    Raises children of GGSError for what the user or the cluster did wrong.
    """
    local_rank, local_size = _number("LOCAL_RANK", 0), _number("LOCAL_WORLD_SIZE", 1)
    device = pick_device(config, local_rank)
    if config.threads or "OMP_NUM_THREADS" not in os.environ:  # the launcher sets it
        torch.set_num_threads(config.threads or max(1, len(os.sched_getaffinity(0)) // local_size))
    if config.download and local_rank == 0:
        data.download(config)  # the others of this machine wait for us in the rendezvous below
    group = _join(config, device, local_size)
    train(config, device, group)
    if dist.is_initialized():
        dist.destroy_process_group()


def pick_device(config: TrainConfig, local_rank: int) -> torch.device:
    """The worker's device, made the current one. Workers beyond the GPUs share them in turn."""
    gpus = torch.cuda.device_count() if config.device != "cpu" else 0
    if not gpus:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % gpus)
    torch.cuda.set_device(device)
    return device


def train(config: TrainConfig, device: torch.device, group: ProcessGroup | None) -> dict[str, Any]:
    """Train in an existing process group and return the summary, on rank 0 also written and printed."""
    collectives = Collectives(group)
    spec = data.spec(config)
    channels = models.input_channels(config.model, spec.channels)
    images = data.load(config, spec, channels, device)
    check_batch(config, len(images[0]), collectives.size)
    plan = Plan.of(config, len(images[0]), collectives.size)
    first = collectives.rank == 0
    folder = RunFolder(config) if first else None
    reporter = Reporter(plan.steps, plan.epochs) if first else None
    try:
        if folder and reporter and folder.restarted:
            reporter.say(f"starting over the run in {folder.path}")
        model = _model(config, spec, channels, device)
        torch.manual_seed(seeds.derive(config.seed, seeds.MODEL, collectives.rank))
        optimizer = distribute(
            config, build_optimizer(config, model.parameters()), model, plan.density_warmup, group
        )
        trainer = Trainer(
            config, plan, model, optimizer, images, collectives, device, folder, reporter
        )
        trainer.run()
        summary = _finish(trainer)
        if folder and reporter:
            folder.finish(summary)
            reporter.summary(summary, str(folder.path))
    finally:
        if reporter:
            reporter.close()
    return summary


def _join(config: TrainConfig, device: torch.device, local_size: int) -> ProcessGroup | None:
    if _number("WORLD_SIZE", 1) == 1:
        return None
    # The launcher knows whether every task has GPUs; a worker knows only its own.
    backend = config.backend if config.backend != "auto" else os.environ.get("GGS_BACKEND", "auto")
    if backend == "auto":
        own_gpu = device.type == "cuda" and local_size <= torch.cuda.device_count()
        backend = "nccl" if own_gpu else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=config.rendezvous_timeout))
    group = dist.new_group(timeout=timedelta(seconds=config.collective_timeout))
    assert isinstance(group, ProcessGroup)  # every rank is a member
    return group


def _model(
    config: TrainConfig, spec: data.DataSpec, channels: int, device: torch.device
) -> nn.Module:
    torch.manual_seed(seeds.derive(config.seed, seeds.WEIGHTS))
    model = models.build(
        config.model, spec.num_classes, channels, spec.image_size, config.model_options
    ).to(device)
    return model.to(memory_format=torch.channels_last) if config.channels_last else model


def _finish(trainer: Trainer) -> dict[str, Any]:
    """Evaluate and save the final model; a collective. Return the summary."""
    replicas: list[float] = []
    config, optimizer = trainer.config, trainer.optimizer
    if (
        config.batchnorm != "dense"
        and batchnorm_modules(trainer.model)
        and trainer.collectives.size > 1
    ):
        replicas = evaluate_replicas(
            trainer.model, trainer.test_images, config, trainer.collectives, trainer.device
        )
    result = trainer.evaluate()
    if replicas and config.batchnorm == "local":
        result["top1"] = sum(replicas) / len(replicas)  # there is no one model for all images
    with optimizer.consolidated(trainer.calibration()):
        if trainer.folder:
            trainer.folder.save_weights(trainer.model)
    state, plan, world_size = trainer.state, trainer.plan, trainer.collectives.size
    settled = state.settled_steps
    images = state.step * config.batch_size * config.accumulate * world_size
    sent = state.settled_bytes / settled if settled else state.bytes_sent / max(1, state.step)
    dense = optimizer.dense_bytes_per_step
    return {
        "method": config.method,
        "model": config.model,
        "data": config.data,
        "optimizer": config.optimizer,
        **result,
        "top1_replicas_min": min(replicas, default=None),
        "top1_replicas_mean": sum(replicas) / len(replicas) if replicas else None,
        "test_images": len(trainer.test_images),
        "world_size": world_size,
        "density": state.settled_elements / (settled * optimizer.statistics.numel)
        if settled
        else None,
        "density_warmup_steps": plan.density_warmup,
        "steps": state.step,
        "epochs": state.step / plan.steps_per_epoch,
        "skipped_steps": optimizer.statistics.skipped_steps,
        "seconds": round(state.seconds, 3),
        "samples_per_second": round(images / state.training_seconds, 1),
        "bytes_sent_per_step": round(sent, 1),
        "dense_bytes_per_step": dense,
        "compression_ratio": dense / sent if sent else None,
        "bytes_sent_total": state.bytes_sent,
        "compression_ratio_total": dense * state.step / state.bytes_sent
        if state.bytes_sent
        else None,
        "batch_size": config.batch_size * config.accumulate * world_size,
        "seed": config.seed,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "device": _device_name(trainer.device),
        "ggs_version": __version__,
        "torch_version": torch.__version__,
        "python_version": platform.python_version(),
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))

"""One worker process: joins the process group, trains, writes the results, leaves."""

import os
import signal
import sys
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from ggs.dist import process_group
from ggs.dist.backend import choose_backend
from ggs.dist.collectives import Collectives
from ggs.dist.process_group import Group, connect
from ggs.errors import CheckpointError, ConfigurationError
from ggs.launch.placement import threads_per_worker
from ggs.optim.batchnorm import batchnorm_modules
from ggs.output import say
from ggs.train import data, models, seeds, tensorboard
from ggs.train.check import check_batch
from ggs.train.checkpoint.checkpointer import Checkpointer, resume
from ggs.train.checkpoint.load import Loaded
from ggs.train.config import TrainConfig
from ggs.train.console import LogHandler, Reporter, log_shown
from ggs.train.error_translation import cluster_errors
from ggs.train.evaluate import evaluate_replicas
from ggs.train.image_set import DataSpec, ImageSet
from ggs.train.kernels import compile_kernels
from ggs.train.loop import RunPlan, Trainer
from ggs.train.optimizers import build_optimizer, distribute
from ggs.train.records import Summary
from ggs.train.run_folder import RunFolder
from ggs.train.smoke_test import run_smoke_test
from ggs.train.summary import summarise


def main(config: TrainConfig) -> None:
    """Train as one of the workers that RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT describe; alone, without a process group, where they are not set.

    Raises children of GGSError for what the user or the cluster did wrong.
    """
    # Nothing is to be wound up, files are whole or not there, and an exchange would hold up an exception.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    local_rank, local_size = _number("LOCAL_RANK", 0), _number("LOCAL_WORLD_SIZE", 1)
    device = pick_device(config, local_rank)
    if config.threads or "OMP_NUM_THREADS" not in os.environ:  # the launcher sets it
        torch.set_num_threads(threads_per_worker(config.threads, local_size))
    if config.download and local_rank == 0:
        data.download(config)  # the others of this machine wait for us in the rendezvous below
    selects_here = device.type == "cpu" and config.method != "dense"
    if selects_here and local_rank == 0:
        seconds = compile_kernels(_values(config))  # once, in the first run of a machine
        if seconds is not None:
            say(
                sys.stdout,
                f"ggs: compiled selection and coding for this CPU in {seconds:.0f} s; later runs have "
                "them where a cache can be written",
            )
    group = _join(config, device, local_size)
    if selects_here and local_rank != 0:
        compile_kernels(_values(config))  # reads what the first worker has compiled
    with cluster_errors(config.collective_timeout):
        train(config, device, group)
        # A worker that hangs after its last exchange would be waited for without end.
        connect(group).all_reduce_max_(torch.zeros(1, dtype=torch.uint8, device=device))
    process_group.leave()


def _values(config: TrainConfig) -> str:
    """The format whose kernels the run needs; "sign" is what nearly every budget comes to."""
    return config.values or "sign"


def pick_device(config: TrainConfig, local_rank: int) -> torch.device:
    """The worker's device, made the current one. Workers beyond the GPUs share them in turn."""
    gpus = torch.cuda.device_count() if config.device != "cpu" else 0
    if not gpus:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % gpus)
    torch.cuda.set_device(device)
    return device


def train(
    config: TrainConfig,
    device: torch.device,
    group: Group | None,
    images: tuple[ImageSet, ImageSet] | None = None,
) -> dict[str, Any]:
    """Train in an existing process group and return the summary, on rank 0 also written and printed.

    Args:
        config: the run.
        device: this worker's.
        group: the workers; None for the default group, or for one worker where there is none.
        images: the training and test images where they are loaded already; see ``data.load``.
    """
    collectives = connect(group)
    if collectives.shares_process and config.checkpoint_dir is not None:
        raise ConfigurationError(
            "checkpoint_dir: workers that share a process write no checkpoints"
        )
    if collectives.shares_process and config.exchange == "hierarchical":
        raise ConfigurationError(
            "exchange: workers that share a process are on no nodes that hierarchical could tell apart; "
            "give allgather or split"
        )
    if collectives.rank > 0:  # rank 0 speaks for all
        return asdict(_train(config, device, group, collectives, images, None))
    with log_shown() as log:
        return asdict(_train(config, device, group, collectives, images, log))


def _train(
    config: TrainConfig,
    device: torch.device,
    group: Group | None,
    collectives: Collectives,
    images: tuple[ImageSet, ImageSet] | None,
    log: LogHandler | None,
) -> Summary:
    spec = data.spec(config)
    images = images or data.load(config, spec, device)
    check_batch(config, len(images[0]), collectives.size)
    plan = RunPlan.of(config, len(images[0]), collectives.size)
    model = build_model(config, spec, device)
    torch.manual_seed(seeds.derive(config.seed, seeds.MODEL, collectives.rank))
    optimizer = distribute(
        config, build_optimizer(config, model.parameters()), model, plan.density_warmup, group
    )
    trainer = Trainer(config, plan, model, optimizer, images, collectives, device)
    resumed = resume(trainer)
    ended = resumed is not None and trainer.state.step >= trainer.plan.steps
    if resumed is not None and ended:
        trainer.has_ended(resumed.manifest.world_size, resumed.manifest.density_warmup)
    if log is not None:
        _open_results(trainer, resumed, ended, log)
    checkpointer: Checkpointer | None = None
    problem = ""
    try:
        if config.checkpoint_dir is not None:
            background = process_group.background_group(config.checkpoint_timeout)
            checkpointer = Checkpointer(config.checkpoint_dir, trainer, background, resumed)
            trainer.after_step = checkpointer.after_step
        trainer.run()
        if checkpointer and not (
            ended and resumed and resumed.folder.parent == config.checkpoint_dir
        ):
            problem = checkpointer.finish()
        summary = _finish(trainer, checkpointer.seconds if checkpointer else 0.0)
        if trainer.folder and trainer.reporter:
            trainer.folder.finish(summary)
            if checkpointer and not problem:
                checkpointer.mark_done()
            trainer.reporter.summary(asdict(summary), str(trainer.folder.path))
            if problem:
                raise CheckpointError(
                    f"the training has ended and its results are in {trainer.folder.path}, but the "
                    f"checkpoint of its last step, {trainer.state.step:,}, could not be written: {problem}"
                )
    finally:
        if checkpointer:
            checkpointer.close()
        if trainer.folder and trainer.reporter:
            trainer.folder.close()
            trainer.reporter.close()
        if trainer.events:
            trainer.events.close()
    return summary


def _open_results(trainer: Trainer, resumed: Loaded | None, ended: bool, log: LogHandler) -> None:
    config = trainer.config
    if resumed is None:
        trainer.folder = RunFolder(config)
    else:
        trainer.folder = RunFolder(config, resumed.metrics, resumed.manifest.run_dir)
    trainer.reporter = Reporter(trainer.plan.steps, trainer.plan.epochs)
    log.say = trainer.reporter.say
    if trainer.folder.restarted:
        trainer.reporter.say(f"starting over the run in {trainer.folder.path}")
    if ended:
        end = f"step {config.steps:,}" if config.steps else f"epoch {config.epochs}"
        trainer.reporter.say(
            f"nothing to train: the checkpoint is at step {trainer.state.step:,} (epoch {trainer.epochs:g}) "
            f"and the run ends at {end}; evaluating what is there, the figures are those of its "
            f"{trainer.trained_by} worker{'s' * (trainer.trained_by > 1)}"
        )
    elif warning := trainer.plan.warning(config):
        trainer.reporter.say(warning)
    if config.tensorboard and tensorboard.is_installed():
        trainer.events = tensorboard.Events(trainer.folder.path, trainer.state.step)


def _join(config: TrainConfig, device: torch.device, local_size: int) -> Group | None:
    if _number("WORLD_SIZE", 1) == 1:
        return None
    # The launcher knows whether every task has GPUs; a worker knows only its own.
    wanted = config.backend if config.backend != "auto" else os.environ.get("GGS_BACKEND", "auto")
    gpu_each = device.type == "cuda" and local_size <= torch.cuda.device_count()
    backend = choose_backend(wanted, gpu_each)
    return process_group.join(backend, config.rendezvous_timeout, config.collective_timeout)


def build_model(config: TrainConfig, spec: DataSpec, device: torch.device) -> nn.Module:
    """The model of ``config`` as every worker starts with it, on its device."""
    torch.manual_seed(seeds.derive(config.seed, seeds.WEIGHTS))
    model = models.build(
        config.model, spec.num_classes, spec.channels, spec.image_size, config.model_options
    ).to(device)
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if models.needs_smoke_test(config.model):
        run_smoke_test(
            config, model, (spec.channels, spec.image_size, spec.image_size), spec.num_classes
        )
    return model


def _finish(trainer: Trainer, checkpoint_seconds: float) -> Summary:
    """Evaluate and save the final model; a collective. Return the summary."""
    replicas: list[float] = []
    config, optimizer = trainer.config, trainer.optimizer
    trainer.exchange_rest()  # not before the last checkpoint, which a longer run may go on from
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
    return summarise(trainer, result, replicas, checkpoint_seconds)


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))

"""A loaded checkpoint into a trainer, and a trainer into what is saved."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ggs.errors import CheckpointError
from ggs.optim.base import DistributedOptimizer
from ggs.text import one_line
from ggs.train import seeds
from ggs.train.checkpoint import rng
from ggs.train.checkpoint.load import Loaded
from ggs.train.checkpoint.settings import require_same_model
from ggs.train.loop import Trainer


def describe(model: nn.Module) -> dict[str, str]:
    """Kind, dtype and shape of every parameter and buffer, by name."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    return {
        name: f"{kind} {str(tensor.dtype)[6:]} {tuple(tensor.shape)}"
        for kind, tensors in (("parameter", parameters), ("buffer", buffers))
        for name, tensor in tensors.items()
    }


def replicated(optimizer: DistributedOptimizer) -> dict[str, Tensor]:
    """The parameters that are the same on all workers, as they are."""
    return optimizer.shared_weights()


def own_state(trainer: Trainer) -> dict[str, Any]:
    """All that decides how this worker goes on, but for the replicated parameters."""
    state = trainer.state_dict()
    if local := state["optimizer"]["ggs"].get("local_steps"):
        del local["point"]  # which is what is replicated
    return {"model": _own_tensors(trainer), "rng": rng.get_state(trainer.device), **state}


def _own_tensors(trainer: Trainer) -> dict[str, Tensor]:
    shared = {name for name, _ in trainer.optimizer.shared}
    named = [*trainer.model.named_parameters(), *trainer.model.named_buffers()]
    return {name: tensor.detach() for name, tensor in named if name not in shared}


def restore(trainer: Trainer, loaded: Loaded) -> str:
    """Take over a checkpoint; a collective. Returns what changed with the workers' number or nodes, or "".

    Raises ConfigurationError for another model's, CheckpointError for one that does not fit.
    """
    require_same_model(loaded.manifest.model, describe(trainer.model), str(loaded.folder))
    state, size = loaded.state, trainer.collectives.size
    resized = loaded.manifest.world_size != size
    with _fitting(loaded):
        _count_images(trainer, loaded)
        changes = _adapt(trainer, loaded) if resized else ""
        sharing = state["optimizer"]["ggs"].get("residual_weight", 1)
        if sharing != loaded.sharing and not resized:
            changes = (
                f"{loaded.sharing} -> {sharing} workers that share a residual: shared out so that no "
                "update is lost"
            )
        _copy(_own_tensors(trainer), state["model"])
        if trainer.collectives.rank == 0:
            _copy(replicated(trainer.optimizer), loaded.replicated)
    for _, parameter in trainer.optimizer.shared:
        trainer.collectives.broadcast_(parameter)
    with _fitting(loaded):  # local steps go on from the shared weights
        trainer.load_state_dict(state)
        trainer.resumed_from = trainer.state.step
    if resized:  # two workers with one stream of numbers would drop the same units
        rank = trainer.collectives.rank
        torch.manual_seed(
            seeds.derive(trainer.config.seed, seeds.MODEL, rank, size, trainer.state.step)
        )
    else:
        rng.set_state(state["rng"], trainer.device)
    return changes


@contextmanager
def _fitting(loaded: Loaded) -> Iterator[None]:
    """Inside, what does not fit is a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{loaded.folder} does not fit: {type(error).__name__}: {one_line(error)}"
        ) from error


@torch.no_grad()
def _copy(targets: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    if targets.keys() != values.keys():
        odd = sorted(targets.keys() ^ values.keys())[0]
        raise CheckpointError(f"{odd} is not both in the checkpoint and in the model")
    for name, target in targets.items():
        if target.shape != values[name].shape or target.dtype != values[name].dtype:
            raise CheckpointError(f"{name} has another shape or type in the checkpoint")
        target.copy_(values[name])


def _count_images(trainer: Trainer, loaded: Loaded) -> None:
    """Checkpoints of before there was this counter are of one number of workers, as far as they tell."""
    config, loop = trainer.config, loaded.state["loop"]
    per_step = config.batch_size * config.accumulate * loaded.manifest.world_size
    loop.setdefault("images", loop["step"] * per_step)


def _adapt(trainer: Trainer, loaded: Loaded) -> str:
    """Move positions that count in steps of the old size to those of the new one; say what changed."""
    manifest, plan = loaded.manifest, trainer.plan
    old, new = manifest.world_size, trainer.collectives.size
    loop, scheduler = loaded.state["loop"], loaded.state["scheduler"]
    if loop["epoch_step"] >= manifest.steps_per_epoch:
        loop.update(epoch=loop["epoch"] + 1, epoch_step=0)
    images = trainer.config.batch_size * trainer.config.accumulate
    seen = loop["epoch_step"] * images * old
    loop["epoch_step"] = min(seen // (images * new), plan.steps_per_epoch)
    again = seen - loop["epoch_step"] * images * new
    if trainer.config.steps is None:
        scheduler["last_epoch"] = round(
            scheduler["last_epoch"] * plan.steps_per_epoch / manifest.steps_per_epoch
        )
    ggs = loaded.state["optimizer"]["ggs"]
    if manifest.density_warmup and plan.density_warmup:
        ggs["step"] = round(ggs["step"] * plan.density_warmup / manifest.density_warmup)
    return (
        f"{old} -> {new} workers: residuals shared out so that no update is lost; each worker takes the "
        "optimizer state and batch-norm layers of the old worker whose share it takes most of; "
        f"a step has {images * new:,} images instead of {images * old:,}, {again:,} images of this epoch "
        "come twice; schedules go on at the same part of the run; random numbers start anew"
    )


def reach(trainer: Trainer) -> None:
    """Make the plan end where the configuration says, seen from here, and the learning rate fit it."""
    state, plan, config = trainer.state, trainer.plan, trainer.config
    if config.steps is None:
        left = (config.epochs - state.epoch) * plan.steps_per_epoch - state.epoch_step
        trainer.plan = replace(plan, steps=state.step + max(0, left))
    schedule = trainer.scheduler
    for group, base, factor in zip(
        trainer.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
    ):
        group["lr"] = base * factor(schedule.last_epoch)

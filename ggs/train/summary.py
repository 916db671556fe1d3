"""What a run came to: the content of ``summary.json``."""

import platform

import torch

from ggs._version import __version__
from ggs.optim.ggs import GGS
from ggs.train.loop import Trainer
from ggs.train.records import Summary


def summarise(
    trainer: Trainer, result: dict[str, float], replicas: list[float], checkpoint_seconds: float
) -> Summary:
    """The figures of a finished run.

    Args:
        trainer: after its last step.
        result: ``top1`` (percent) and ``loss`` on the test images.
        replicas: top-1 of every worker with its own batch-norm layers; empty where they have none.
        checkpoint_seconds: time that training waited for checkpoints.
    """
    config, optimizer, state = trainer.config, trainer.optimizer, trainer.state
    world_size = trainer.trained_by
    steps, sent, dense, elements, exchanges = (
        (
            state.settled_steps,
            state.settled_bytes,
            state.settled_dense_bytes,
            state.settled_elements,
            state.settled_exchanges,
        )
        if state.settled_steps
        else (state.step, state.bytes_sent, state.dense_bytes, state.elements, state.exchanges)
    )
    momentum, taken = None, None
    if isinstance(optimizer, GGS) and (pairs := optimizer.momentum_at(max(0, state.step - 1))):
        momentum, taken = pairs[0]
    exchanges = steps if config.every == 1 else max(1, exchanges)
    total = state.bytes_sent
    global_batch_size = config.batch_size * config.accumulate * world_size
    return Summary(
        method=config.method,
        model=config.model,
        data=config.data,
        optimizer=config.optimizer,
        top1=result["top1"],
        loss=result["loss"],
        top1_replicas_min=min(replicas, default=None),
        top1_replicas_mean=sum(replicas) / len(replicas) if replicas else None,
        test_images=len(trainer.test_images),
        world_size=world_size,
        density=elements / (exchanges * optimizer.statistics.numel),
        density_warmup_steps=trainer.plan.density_warmup,
        momentum=momentum,
        momentum_taken=taken,
        every=config.every,
        settled_steps=state.settled_steps,
        steps=state.step,
        resumed_from_step=trainer.resumed_from,
        epochs=state.epoch + state.epoch_step / trainer.plan.steps_per_epoch,
        skipped_steps=optimizer.statistics.skipped_steps,
        seconds=round(state.seconds, 3),
        checkpoint_seconds=round(checkpoint_seconds, 3),
        samples_per_second=round(state.images / state.training_seconds, 1),
        bytes_sent_per_step=round(sent / steps, 1),
        bytes_sent_per_exchange=round(sent / exchanges, 1),
        dense_bytes_per_step=dense // steps,
        compression_ratio=dense / sent if sent else None,
        bytes_sent_total=total,
        compression_ratio_total=state.dense_bytes / total if total else None,
        batch_size=config.batch_size,
        global_batch_size=global_batch_size,
        seed=config.seed,
        parameters=sum(p.numel() for p in trainer.model.parameters()),
        device=device_name(trainer.device),
        ggs_version=__version__,
        torch_version=torch.__version__,
        python_version=platform.python_version(),
    )


def device_name(device: torch.device) -> str:
    """The GPU's name, or ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type

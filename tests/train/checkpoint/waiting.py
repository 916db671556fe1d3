"""Waiting for what a training's checkpoint thread does."""

from ggs.train.loop import Trainer


def wait_for_checkpoint(trainer: Trainer) -> None:
    """Until the checkpoint that is being written is whole."""
    if trainer.after_step is not None:
        trainer.after_step.__self__._writer.wait()  # type: ignore[attr-defined]  # a Checkpointer's

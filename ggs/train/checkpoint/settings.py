"""Which settings make a run another one."""

from collections.abc import Mapping
from typing import Any

from ggs.errors import ConfigurationError
from ggs.train.config import TrainConfig

FREE_TO_CHANGE = frozenset(
    {
        "run_dir", "overwrite", "log_every", "evaluate_every", "eval_batch_size",
        "data_dir", "download", "in_memory", "data_workers",
        "epochs", "steps", "max_consecutive_skips",
        "workers", "roles", "independent", "device", "threads", "backend", "workers_per_node",
        "rendezvous_timeout", "collective_timeout",
        "checkpoint_dir", "checkpoint_every", "keep_checkpoints", "checkpoint_timeout", "resume",
        "check_replicas_every", "tensorboard", "dry_run",
    }
)  # fmt: skip
"""Settings that a resumed run may change. All others decide what is computed."""


def values(config: TrainConfig) -> dict[str, Any]:
    """The configuration as JSON values."""
    return config.model_dump(mode="json")


def difference(stored: Mapping[str, Any], config: TrainConfig) -> str:
    """The first setting that makes ``config`` another run, as 'NAME is A there and B here'; or ''.

    A setting that the stored configuration does not know had its default.
    """
    there = {**values(TrainConfig.model_validate({})), **stored}
    for name, here in values(config).items():
        if name not in FREE_TO_CHANGE and there[name] != here:
            return f"{name} is {there[name]} there and {here} here"
    return ""


def require_same_run(stored: Mapping[str, Any], config: TrainConfig, where: str) -> None:
    """Raise ConfigurationError where a checkpoint's settings are another run's."""
    if found := difference(stored, config):
        raise ConfigurationError(
            f"{where} is of another run: {found}; give another --checkpoint-dir, or "
            "--overwrite to start over"
        )


def require_same_model(stored: Mapping[str, str], here: Mapping[str, str], where: str) -> None:
    """Raise ConfigurationError where a checkpoint's parameters or buffers are another model's."""
    for name in [*here, *stored]:
        if stored.get(name) != here.get(name):
            raise ConfigurationError(
                f"{where} is of another model: {name} is {stored.get(name, 'absent')} there and "
                f"{here.get(name, 'absent')} here; give another --checkpoint-dir"
            )

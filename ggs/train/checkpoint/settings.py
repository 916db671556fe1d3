"""Which settings make a run another one."""

from collections.abc import Mapping
from typing import Any

from ggs.errors import ConfigurationError
from ggs.train.config import TrainConfig


def values(config: TrainConfig) -> dict[str, Any]:
    """The configuration as JSON values."""
    return config.model_dump(mode="json")


def difference(stored: Mapping[str, Any], config: TrainConfig) -> str:
    """The first setting that makes ``config`` another run, as 'NAME is A there and B here'; or ''.

    A setting that the stored configuration does not know had its default.
    """
    there = {**values(TrainConfig.model_validate({})), **stored}
    here = values(config)
    for name in TrainConfig.fixed(resumed=True):
        if there[name] != here[name]:
            return f"{name} is {there[name]} there and {here[name]} here"
    return ""


def require_same_run(stored: Mapping[str, Any], config: TrainConfig, where: str) -> None:
    """Raise ConfigurationError where a checkpoint's settings are another run's."""
    if changed := difference(stored, config):
        raise ConfigurationError(
            f"{where} is of another run: {changed}; give another --checkpoint-dir, or "
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

"""The part of a configuration that the launcher needs."""

from ggs.launch.placement import LaunchOptions
from ggs.train.config import TrainConfig


def launch_options(config: TrainConfig) -> LaunchOptions:
    """How ``config`` wants its workers started."""
    return LaunchOptions(
        workers=config.workers,
        backend=config.backend,
        rendezvous_timeout=config.rendezvous_timeout,
        finish_timeout=config.collective_timeout,  # they end together: a last exchange sees to it
        roles=tuple(filter(None, config.roles.split(","))),
        independent=config.independent,
        cpu=config.device == "cpu",
        threads=config.threads,
    )

"""From a command line to running workers; what ``ggs train`` and ``entrypoint.py`` both call."""

from collections.abc import Sequence

from ggs.launch import exit_codes, launcher
from ggs.launch.placement import LaunchOptions
from ggs.train.config import TrainConfig, parse


def start(argv: Sequence[str], prog: str = "ggs train") -> int:
    """Read and check the settings, then train in this task's workers. Returns the exit code.

    Raises GGSError for whatever is wrong before the workers run.
    """
    config = parse(argv, prog)
    if config.dry_run:
        from ggs.train.dry_run import describe, dry_run

        print(describe(dry_run(config)))
        return exit_codes.SUCCESS
    from ggs.train import worker  # after the checks: a wrong setting is told without the wait

    return launcher.start(launch_options(config), worker.main, (config,))


def launch_options(config: TrainConfig) -> LaunchOptions:
    """The part of ``config`` that the launcher needs."""
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

"""From a command line to running workers; what ``ggs train`` and ``entrypoint.py`` both call."""

from collections.abc import Sequence

from ggs.launch import exit_codes, launcher
from ggs.train.config import TrainConfig, parse
from ggs.train.launch_options import launch_options
from ggs.train.names import check_names


def start(argv: Sequence[str], prog: str = "ggs train") -> int:
    """Read and check the settings, then train in this task's workers. Returns the exit code.

    Raises GGSError for whatever is wrong before the workers run.
    """
    config = parse_and_check(argv, prog)
    if config.dry_run:
        from ggs.train.dry_run import describe, dry_run

        print(describe(dry_run(config)))
        return exit_codes.SUCCESS
    from ggs.train import worker  # after the checks: a wrong setting is reported without the wait

    return launcher.start(launch_options(config), worker.main, (config,))


def parse_and_check(argv: Sequence[str], prog: str = "ggs train") -> TrainConfig:
    """Read flags and ``--config``, and check all that can be checked before a worker starts.

    Raises ConfigurationError with one line that names the setting, its value and what is allowed;
    SystemExit(0) after ``--help``.
    """
    config = parse(argv, prog)
    check_names(config.optimizer, config.model)
    from ggs.train.check import check  # imports torch, which a help page can do without

    check(config)
    return config

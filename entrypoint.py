"""Train on OpenPAI, or on this machine: one worker per GPU, on every task of the job.

    python entrypoint.py --config config.yaml --workers 2        a training (ggs train --help)
    python entrypoint.py --workers 2 --script train.py --lr 1    your own script in every worker

A script finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set, as under torchrun. The
first line of the log says which task and ranks these are; after a failure the last says what failed.
"""

import sys
from collections.abc import Sequence

from ggs.launch import script
from ggs.launch.launcher import guard, start


def main(argv: Sequence[str]) -> int:
    """Read the command line and OpenPAI's variables, start the workers. Returns the exit code."""
    command = script.split(argv)
    if command is not None:
        options, path, arguments = command
        return start(options, script.run, (path, arguments))

    from ggs.train.start import start as train

    return train(argv, prog="entrypoint.py")


if __name__ == "__main__":
    sys.exit(guard(lambda: main(sys.argv[1:])))

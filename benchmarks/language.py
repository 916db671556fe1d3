"""Train a small character transformer with every method of a grid, and compare loss and bytes.

    python benchmarks/language.py --grid momentum,values --jobs 2

4 workers in lockstep in one process and on one core, 500 steps, 8 sequences of 64 characters each. The
text is shipped (``language_text``), the grids are lists of settings (``language_grids``). Every finished
run is one JSON line appended to ``--out``; runs that are there already are skipped, so the same command
resumes a study that was interrupted. ``language_tables.py`` makes the tables and the picture.
"""

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import results_file
from language_grids import GRIDS, SEEDS, runs
from language_run import execute
from language_settings import Setting, identity
from study_pool import INTERRUPTED, finished

from ggs.errors import GGSError

OUT = Path(__file__).parents[1] / "docs" / "results" / "language.jsonl"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )  # fmt: skip
    add = parser.add_argument
    add("--grid", required=True, help=f"one or more, with commas, of {', '.join(GRIDS)}")
    add("--width", type=int, choices=(64, 128), default=64, help="of the transformer")
    add("--seeds", default=",".join(map(str, SEEDS)), help="with commas")
    add("--jobs", type=int, default=1, help="runs at once, each on one core")
    add("--out", type=Path, default=OUT, help="JSON lines")
    add("--list", action="store_true", help="print the runs that are missing, and run none")
    arguments = parser.parse_args(argv)
    arguments.grid = arguments.grid.split(",")
    if unknown := [name for name in arguments.grid if name not in GRIDS]:
        parser.error(f"--grid {','.join(unknown)}: choose of {', '.join(GRIDS)}")
    try:
        arguments.seeds = [int(seed) for seed in arguments.seeds.split(",")]
    except ValueError:
        parser.error(f"--seeds {arguments.seeds}: give whole numbers, as in 0,1,2")
    if arguments.jobs < 1:
        parser.error(f"--jobs {arguments.jobs}: give 1 or more")
    return arguments


def study(missing: Sequence[Setting], out: Path, jobs: int) -> int:
    """Train ``missing``, ``jobs`` at once, and append each row as it comes; how many failed."""
    failed = 0
    out.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(finished(jobs, execute, missing)) as results:
        for done, (setting, row) in enumerate(results, 1):
            where = f"[{done}/{len(missing)}] {setting}"
            if isinstance(row, GGSError):
                failed += 1
                print(f"{where}: {row}", file=sys.stderr, flush=True)
                continue
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{where}: loss {row['loss']:.4f}, {row['bytes_per_step']:,.0f} bytes a step, "
                  f"{row['bytes_total']:,} in all, {row['seconds']:.0f} s", flush=True)  # fmt: skip
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing."""
    arguments = parse(argv)
    wanted = runs(arguments.grid, arguments.seeds, arguments.width)
    try:
        there = {identity(row) for row in results_file.load(arguments.out)}
        missing = [run for run in wanted if identity(dataclasses.asdict(run)) not in there]
        print(
            f"{len(wanted)} runs, {len(wanted) - len(missing)} of them in {arguments.out}",
            flush=True,
        )
        if arguments.list:
            print(*missing, sep="\n")
            return 0
        results_file.cut_off_half_line(arguments.out)
        return 1 if missing and study(missing, arguments.out, arguments.jobs) else 0
    except KeyboardInterrupt:
        print(f"language.py: interrupted; the same command goes on from what is in {arguments.out}",
              file=sys.stderr)  # fmt: skip
        return INTERRUPTED
    except BrokenProcessPool:
        print(f"language.py: a training process was killed, most often for its memory: give fewer --jobs; "
              f"the same command goes on from what is in {arguments.out}", file=sys.stderr)  # fmt: skip
    except results_file.ResultsError as error:
        print(f"language.py: {error}", file=sys.stderr)
    except OSError as error:
        print(f"language.py: {arguments.out}: {error.strerror or error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

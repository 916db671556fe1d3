"""Everything that a GPU has to show, within a budget of minutes; see gpu.sh.

    python benchmarks/gpu.py --out FILE.jsonl [--minutes 8] [--data-dir DIR] [--dry-run]

Each part runs in a process of its own, which appends its rows to ``--out`` as it gets them; what fails or
hangs costs that part alone. A part that is finished leaves a row with ``"done": true`` and is not run again
by the next call; one that failed is. A part that does not fit into what is left of the budget is not begun:
the last row names those that are left. ``--dry-run`` runs every part in small on the CPU, the CUDA kernels
in Triton's interpreter: its rows say ``"tiny": true``, and are no measurements.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ggs.signals import handled

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("alexnet", "resnet50", "densenet121")
TINY_MODELS = ("squeezenet1_1",)
SLACK = 3.0
"""How many times as long as expected a part may take before it is stopped."""


@dataclass(frozen=True)
class Part:
    """A part of the measurements."""

    name: str
    """What is measured, and of which model."""
    seconds: float
    """How long it is expected to take on a GPU: with less than that left it is not begun."""
    fills: bool = False
    """Whether it makes use of all the time that is left."""


def parts(tiny: bool) -> list[Part]:
    """All parts, the most important first; the last takes as long as it is given."""
    models = TINY_MODELS if tiny else MODELS
    return [
        Part("tests", 40),
        Part("equality", 40),
        Part("selection", 25),
        *(Part(f"step {model}", 20) for model in models),
        *(Part(f"train {model}", 45) for model in models),
        Part("memory", 30),
        Part("cifar10", 60, fills=True),
    ]


class Results:
    """The file of results: one JSON object a line, each written at once."""

    def __init__(self, path: Path, common: dict[str, Any]) -> None:
        self._path, self._common = path, common
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def write(self, part: str, name: str, **values: Any) -> None:
        """Append a row, and see to it that it is on the disk."""
        line = json.dumps({"part": part, "name": name, **self._common, **values})
        with self._path.open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(line, flush=True)

    def done(self) -> set[str]:
        """Names of the parts that are finished, at full size or in small like this run."""
        rows = []
        for line in self._path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue  # half a line, of a run that was killed
        tiny = self._common["tiny"]
        return {row["part"] for row in rows if row.get("done") and row["tiny"] == tiny}

    def end_half_line(self) -> None:
        """What a killed run left of its last line does not swallow the next."""
        if (content := self._path.read_bytes()) and not content.endswith(b"\n"):
            self._path.write_bytes(content + b"\n")


def common(tiny: bool) -> dict[str, Any]:
    """What every row says of the machine and the code."""
    import torch

    run = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        commit = subprocess.run(run, capture_output=True, text=True).stdout.strip() or None
    except OSError:
        commit = None
    device = "cpu" if tiny else torch.cuda.get_device_name()
    return {"device": device, "torch": torch.__version__, "commit": commit, "tiny": tiny}


def run_part(part: Part, limit: float, options: argparse.Namespace) -> str | None:
    """Run a part in a process of its own; why it failed, or None."""
    command = [sys.executable, __file__, "--part", part.name, "--seconds", str(limit)]
    command += ["--out", str(options.out)]
    command += ["--data-dir", str(options.data_dir)] if options.data_dir else []
    command += ["--dry-run"] if options.dry_run else []
    environment = dict(os.environ)
    if options.dry_run:
        environment["CUDA_VISIBLE_DEVICES"] = ""
        if part.name == "equality":
            environment["TRITON_INTERPRET"] = "1"  # Triton decides at its import
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit:.0f} s"
    finally:
        stop(process)
    return f"exit status {status}; its output says why" if status else None


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a part and all the processes that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def run_all(options: argparse.Namespace, started: float) -> int:
    """Run what is not done and fits; the exit status: 1 where a part failed."""
    results = Results(options.out, common(options.dry_run))
    results.end_half_line()
    done, left, failed = results.done(), [], False
    for part in parts(options.dry_run):
        if part.name in done:
            continue
        remaining = options.minutes * 60 - (time.monotonic() - started)
        if remaining < part.seconds:
            left.append(part.name)
            continue
        begun = time.monotonic()
        limit = remaining if part.fills or options.dry_run else min(remaining, SLACK * part.seconds)
        error = run_part(part, limit, options)
        seconds = round(time.monotonic() - begun, 1)
        if error:
            failed = True
            results.write(part.name, "end", done=False, error=error, seconds=seconds)
        elif part.name == "cifar10" and not options.dry_run and not cifar10_is_done(options):
            left.append(part.name)  # the next call goes on from its checkpoints
        else:
            results.write(part.name, "end", done=True, seconds=seconds)
    if left:
        results.write("left", "budget", left=left, minutes=options.minutes)
    return int(failed)


def cifar10_is_done(options: argparse.Namespace) -> bool:
    """Whether the last rows of that part say that the training is complete, or impossible."""
    from gpu_cifar10 import METHODS

    last = {}
    for line in options.out.read_text().splitlines():
        row = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
        if row.get("part") == "cifar10":
            last[row["name"]] = row
    if "skipped" in last.get("data", {}):
        return False  # with data it can still be done
    return all(last.get(method, {}).get("finished") for method in METHODS)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON lines; rows are appended")
    parser.add_argument("--minutes", type=float, default=8.0, help="of this call, 8 by default")
    parser.add_argument("--data-dir", type=Path, help="CIFAR-10; unset: no training on it")
    parser.add_argument("--dry-run", action="store_true", help="everything in small on the CPU")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=60, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    options.out = options.out.resolve()
    if options.part:
        import gpu_parts

        gpu_parts.run(options, Results(options.out, common(options.dry_run)))
        return 0
    import torch

    if not options.dry_run and not torch.cuda.is_available():
        print("gpu.py: this torch sees no GPU; --dry-run runs every part in small on the CPU",
              file=sys.stderr)  # fmt: skip
        return 2
    with handled([signal.SIGTERM], lambda number, frame: sys.exit(128 + number)):
        return run_all(options, started)


if __name__ == "__main__":
    sys.exit(main())

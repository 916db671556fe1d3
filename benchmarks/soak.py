"""Kill a training again and again, resume it, and compare it with one that nobody disturbed.

    python benchmarks/soak.py --kills 100 --seed 0

Two OpenPAI tasks on 127.0.0.1 and 127.0.0.2, each the real ``entrypoint.py`` with one worker, train
LeNet-5 on real MNIST images with GGS around Adam. At a random moment of an attempt (the rendezvous, a
forward pass, an exchange, a checkpoint being written, ...) SIGKILL ends a worker, a launcher or a whole
task; now and then SIGSTOP freezes a worker instead. All tasks must end by themselves in bounded time, with
a non-zero code and no process left. Then they start again, as OpenPAI would start them: the same command
line, other ports, another attempt. A training that gets to its end is compared with the undisturbed one,
bit for bit: final weights, losses and evaluations. The last line is JSON; the exit code is 1 if anything
hung, differed, failed by itself or was left behind. However this script ends, its tasks end with it.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from ggs.launch.processes import Stopped, die_with_parent, stop_on_signals

ROOT = Path(__file__).resolve().parent.parent
TASKS = 2
END_SECONDS = 180
"""How long the tasks may take to end once one of them was killed; longer is a hang."""
TRAINING_SECONDS = 600
"""How long an attempt that nobody kills may take."""
COLLECTIVE_SECONDS = 10
TIMES = ("seconds", "samples_per_second", "step_seconds")


class Attempt:
    """One start of all tasks."""

    def __init__(self, number: int, folder: Path, arguments: list[str]) -> None:
        self.log = folder / f"attempt-{number}.log"
        self.marker = f"soak-{os.getpid()}-{number}"
        ports = _free_ports(2)
        with self.log.open("w") as log:
            self.tasks = [
                subprocess.Popen(
                    [sys.executable, str(ROOT / "entrypoint.py"), *arguments],
                    env=self._environment(index, ports),
                    cwd=ROOT,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    preexec_fn=partial(die_with_parent, os.getpid()),
                )
                for index in range(TASKS)
            ]

    def _environment(self, index: int, ports: list[int]) -> dict[str, str]:
        text = ",".join(map(str, ports))
        variables = {
            "PAI_CURRENT_TASK_ROLE_NAME": "worker",
            "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX": str(index),
            "PAI_TASK_INDEX": str(index),
            "PAI_TASK_ROLE_LIST": "worker",
            "PAI_TASK_ROLE_TASK_COUNT_worker": str(TASKS),
            "PAI_RESOURCE_worker": "0,1,4096,512",
            "PAI_JOB_NAME": "someone~soak",
            "FC_FRAMEWORK_ATTEMPT_INSTANCE_UID": self.marker,
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.log.parent),  # what a killed task leaves there goes with the soak
        }
        for task in range(TASKS):
            variables[f"PAI_HOST_IP_worker_{task}"] = f"127.0.0.{task + 1}"
            variables[f"PAI_PORT_LIST_worker_{task}_SynPort"] = text
        variables["PAI_CONTAINER_HOST_IP"] = f"127.0.0.{index + 1}"
        return {**os.environ, **variables}

    def processes(self, task: int | None = None) -> dict[int, list[str]]:
        """Living processes of this attempt, or of one task of it, and their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                variables = (entry / "environ").read_bytes()
                if self.marker.encode() not in variables:
                    continue
                if task is not None and b"PAI_TASK_INDEX=%d\0" % task not in variables:
                    continue
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    command = (entry / "cmdline").read_bytes().decode().split("\0")
                    found[int(entry.name)] = command
        return found

    def wait(self, seconds: float) -> list[int] | None:
        """The tasks' exit codes; None if one does not end in time."""
        deadline = time.monotonic() + seconds
        codes = []
        for task in self.tasks:
            try:
                codes.append(task.wait(max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                return None
        return codes

    def running(self) -> bool:
        """Whether a task is still there."""
        return any(task.poll() is None for task in self.tasks)

    def kill_all(self) -> None:
        """End whatever is left."""
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for task in self.tasks:
            task.wait()

    def strike(self, generator: random.Random) -> str:
        """Kill, or freeze, something. Returns what."""
        task = generator.randrange(TASKS)
        kind = generator.choices(("worker", "launcher", "task", "frozen"), (5, 3, 3, 1))[0]
        processes = self.processes(task)
        launcher = self.tasks[task].pid
        workers = [p for p, words in processes.items() if "ggs.launch.worker_process" in words]
        victims = {"worker": workers, "launcher": [launcher], "task": [launcher, *processes]}
        chosen = workers if kind == "frozen" else victims[kind]
        if not chosen:  # the workers do not run yet
            kind, chosen = "launcher", [launcher]
        number = signal.SIGSTOP if kind == "frozen" else signal.SIGKILL
        for process in chosen:
            with suppress(ProcessLookupError):
                os.kill(process, number)
        return kind


class Soak:
    """Trainings in ``folder``, disturbed until there were enough kills."""

    def __init__(self, folder: Path, kills: int, steps: int, seed: int) -> None:
        self.folder, self.wanted, self.steps = folder, kills, steps
        self.generator = random.Random(seed)
        self.attempts = self.kills = self.hangs = self.differences = self.orphans = 0
        self.trainings = self.resumed = self.unclean = 0
        self.kinds: Counter[str] = Counter()
        self.longest = self.startup = 0.0
        self.current: Attempt | None = None

    def run(self) -> dict[str, Any]:
        """Do it all; the figures."""
        started = time.monotonic()
        reference = self.folder / "undisturbed"
        self.undisturbed(reference)
        while self.kills < self.wanted:
            self.training(self.folder / f"disturbed-{self.trainings}", reference)
        return {
            "kills": self.kills,
            "hangs": self.hangs,
            "differences": self.differences,
            "orphans": self.orphans,
            "unclean_ends": self.unclean,
            "kinds": dict(self.kinds),
            "trainings": self.trainings,
            "attempts": self.attempts,
            "attempts_that_resumed": self.resumed,
            "longest_end_seconds": round(self.longest, 1),
            "seconds": round(time.monotonic() - started),
        }

    def start(self, folder: Path) -> Attempt:
        self.attempts += 1
        arguments = [
            "--data", "mnist5k", "--model", "lenet5", "--steps", str(self.steps), "--batch-size", "16",
            "--augment", "--density-warmup", f"{self.steps // 2} steps", "--log-every", "7",
            "--evaluate-every", f"{self.steps // 3} steps", "--threads", "1", "--workers", "1",
            "--device", "cpu", "--rendezvous-timeout", "45", "--checkpoint-every", "23 steps",
            "--collective-timeout", str(COLLECTIVE_SECONDS), "--keep-checkpoints", "2",
            "--checkpoint-dir", str(folder / "checkpoints"), "--run-dir", str(folder / "run"),
        ]  # fmt: skip
        self.current = Attempt(self.attempts, self.folder, arguments)
        return self.current

    def close(self) -> None:
        """End the attempt that runs, if one does."""
        if self.current is not None:
            self.current.kill_all()

    def undisturbed(self, folder: Path) -> None:
        """Train without a kill; measure how long the start and the training take."""
        started = time.monotonic()
        attempt = self.start(folder)
        record = folder / "run" / "metrics.jsonl"
        while attempt.running() and not record.exists():
            time.sleep(0.02)
        self.startup = time.monotonic() - started
        codes = attempt.wait(TRAINING_SECONDS)
        if codes != [0] * TASKS:
            attempt.kill_all()
            raise SystemExit(f"the undisturbed training failed:\n{attempt.log.read_text()}")
        trained = time.monotonic() - started - self.startup
        print(f"undisturbed: {self.startup:.1f} s to start, {trained:.1f} s to train", flush=True)

    def training(self, folder: Path, reference: Path) -> None:
        """One training to its end, with kills on the way as long as more are wanted."""
        self.trainings += 1
        ended = False
        while not ended:
            attempt = self.start(folder)
            if self.kills >= self.wanted:
                ended = self.ends_well(attempt, attempt.wait(TRAINING_SECONDS))
                continue
            self.let_it_run(attempt, folder / "run" / "metrics.jsonl")
            ended = self.disturb(attempt)
        self.differences += differ(reference / "run", folder / "run")
        shutil.rmtree(folder)

    def let_it_run(self, attempt: Attempt, record: Path) -> None:
        """Until a random moment: of the start in one case of three, else of the training."""
        begun, started = time.time(), time.monotonic()
        if self.generator.random() < 1 / 3:
            time.sleep(self.generator.uniform(0.0, self.startup))
            return
        part, delay = self.generator.uniform(0.0, 0.7), self.generator.uniform(0.0, 0.2)
        target: float | None = None
        while attempt.running() and time.monotonic() < started + TRAINING_SECONDS:
            with suppress(FileNotFoundError):
                if record.stat().st_mtime > begun:  # this attempt writes to it: it trains
                    step = _last_step(record)
                    target = target or step + part * (self.steps - step)
                    if step >= target:
                        break
            time.sleep(0.02)
        time.sleep(delay)

    def disturb(self, attempt: Attempt) -> bool:
        """Strike; whether the training had got to its end before."""
        if not attempt.running():
            return self.ends_well(attempt, attempt.wait(0))
        kind = attempt.strike(self.generator)
        struck = time.monotonic()
        codes = attempt.wait(END_SECONDS)
        took = time.monotonic() - struck
        self.longest = max(self.longest, took)
        self.kills += 1
        self.kinds[kind] += 1
        print(
            f"kill {self.kills}: {kind}; the tasks ended with {codes} after {took:.1f} s",
            flush=True,
        )
        self.leftovers(attempt, codes)
        return codes == [0] * TASKS

    def ends_well(self, attempt: Attempt, codes: list[int] | None) -> bool:
        self.leftovers(attempt, codes)
        if codes is not None and codes != [0] * TASKS:
            self.unclean += 1
            print(f"an attempt that nobody killed failed:\n{attempt.log.read_text()}", flush=True)
        return codes == [0] * TASKS

    def leftovers(self, attempt: Attempt, codes: list[int] | None) -> None:
        """Count a hang, and processes that outlived their tasks by more than a moment."""
        self.resumed += "resuming after step" in attempt.log.read_text()
        if codes is None:
            self.hangs += 1
            print(f"a hang:\n{attempt.log.read_text()}\n{attempt.processes()}", flush=True)
        else:
            deadline = time.monotonic() + 10
            while attempt.processes() and time.monotonic() < deadline:
                time.sleep(0.05)
            self.orphans += len(attempt.processes())
        attempt.kill_all()


def differ(one: Path, other: Path) -> int:
    """How many of weights, record and summary differ, times aside."""
    weights = [(folder / "model.safetensors").read_bytes() for folder in (one, other)]
    records = [
        [
            _timeless(json.loads(line))
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        for folder in (one, other)
    ]
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, other)]
    names = ("top1", "loss", "steps", "epochs", "bytes_sent_total", "density", "skipped_steps")
    ends = [{name: summary[name] for name in names} for summary in summaries]
    found = [
        name
        for name, (here, there) in {"weights": weights, "metrics": records, "summary": ends}.items()
        if here != there
    ]
    if found:
        print(f"differences in {', '.join(found)}: {other}", flush=True)
    return len(found)


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in TIMES}


def _last_step(record: Path) -> int:
    """The step of the last whole line; 0 if there is none."""
    lines = record.read_bytes().split(b"\n")[:-1]
    return int(json.loads(lines[-1])["step"]) if lines else 0


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def exit_code(result: dict[str, Any]) -> int:
    """1 if anything hung, differed, failed by itself or was left behind."""
    return int(any(result[name] for name in ("hangs", "differences", "orphans", "unclean_ends")))


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400, help="of the training")
    parser.add_argument("--seed", type=int, default=0, help="of moments and victims")
    options = parser.parse_args()
    try:
        with (
            stop_on_signals(),
            tempfile.TemporaryDirectory(prefix="ggs-soak-") as folder,
            closing(Soak(Path(folder), options.kills, options.steps, options.seed)) as soak,
        ):
            result = soak.run()
    except Stopped as stopped:
        print(f"stopped by {stopped}", file=sys.stderr)
        return 128 + stopped.number
    print(json.dumps(result))
    return exit_code(result)


if __name__ == "__main__":
    sys.exit(main())

"""Train a grid of methods, optimizers, densities and seeds, and compare their top-1.

    python benchmarks/accuracy.py --model lenet5 --data mnist --data-dir data --epochs 3 \\
        --methods dense,ggs,gs --optimizers adam --densities 1e-3,1e-4 --density-warmups "0,1 epoch" \\
        --workers 4 --batch-size 64 --seeds 3 --jobs 2 --out docs/results/mnist-lenet5.jsonl

Every finished run is one JSON line appended to ``--out``; runs that are there already are skipped, so the
same command resumes a study that was interrupted (Ctrl-C loses the runs under way), and a larger grid adds
to it. All N workers of one run live in one process with one thread (``ggs.dist.lockstep``: bit-identical to N
processes), ``--jobs`` runs train at once. Dense training has one run per seed and optimizer, and Deep
Gradient Compression (dgc) runs with sgd only. At the end come the tables of ``--out``;
``accuracy_tables.py`` makes them, and the plots, of any files.
"""

import argparse
import contextlib
import functools
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch
import yaml
from accuracy_tables import ResultsError, Run, identity, load, tables
from pydantic import TypeAdapter, ValidationError
from study_pool import INTERRUPTED, finished

from ggs import __version__
from ggs.dist import lockstep
from ggs.errors import GGSError
from ggs.train import data
from ggs.train.arguments import build
from ggs.train.check import check
from ggs.train.config import TrainConfig
from ggs.train.duration import DurationField
from ggs.train.image_set import ImageSet
from ggs.train.worker import pick_device, train

LEARNING_RATES = {"adam": 1e-3, "amsgrad": 1e-3, "rmsprop": 1e-3, "adagrad": 1e-2, "sgd": 0.05}
"""The same for every method. sgd has a momentum of 0.9."""
_BEGINNING = b'{"model": '
"""Of every line that ``study`` writes: a file of anything else is not cut."""
_OPTIONS = {
    "model", "data", "data_dir", "image_size", "method", "optimizer", "lr", "density", "density_warmup",
    "scope", "values", "batchnorm", "workers", "batch_size", "seed", "epochs", "steps", "device",
    "run_dir", "tensorboard",
}  # fmt: skip
"""Settings of ``ggs train`` that a run has by this program's own options, or must not have."""


def grid(arguments: argparse.Namespace) -> Iterator[Run]:
    """The identity of every run, seed by seed, so that a part of the study compares all methods."""
    for seed, optimizer in itertools.product(range(arguments.seeds), arguments.optimizers):
        base = {
            "model": arguments.model,
            "data": arguments.name or arguments.data,
            "image_size": arguments.image_size,
            "accelerator": arguments.accelerator,
            "length": f"{arguments.steps} steps"
            if arguments.steps
            else f"{arguments.epochs} epochs",
            "optimizer": optimizer,
            "lr": LEARNING_RATES[optimizer] if arguments.lr is None else arguments.lr,
            "workers": arguments.workers,
            "batch_size": arguments.batch_size,
            "seed": seed,
            "settings": arguments.settings,
        }
        if "dense" in arguments.methods:
            nothing = dict.fromkeys(("density_warmup", "scope", "values"))
            yield {**base, "method": "dense", "density": 1.0, "batchnorm": "dense", **nothing}
        for warmup, density, scope, values, batchnorm, method in itertools.product(
            arguments.density_warmups,
            arguments.densities,
            arguments.scopes,
            arguments.values,
            arguments.batchnorms,
            arguments.methods,
        ):
            if method == "dense" or (method == "dgc" and optimizer != "sgd"):
                continue
            yield {
                **base,
                "method": method,
                "density": density,
                "density_warmup": _spelled(warmup),
                "scope": scope,
                "values": values,
                "batchnorm": batchnorm,
            }


def _spelled(warmup: str) -> str:
    """One text for "1epoch" and "1 epochs". What is no warm-up is told of where the settings are checked."""
    try:
        return str(TypeAdapter(DurationField).validate_python(warmup))
    except ValidationError:
        return warmup


def config(run: Run, arguments: argparse.Namespace, folder: str) -> TrainConfig:
    """The trainer's configuration. Raises ConfigurationError."""
    sparse = ("density", "density_warmup", "scope", "values")
    settings = {name: run[name] for name in sparse if run[name] is not None}
    names = ("model", "method", "optimizer", "lr", "batch_size", "batchnorm", "seed", "workers")
    settings |= {name: run[name] for name in names}
    amount, unit = run["length"].split()
    return build(
        TrainConfig,
        {
            "momentum": 0.9 if run["optimizer"] == "sgd" else None,
            "device": arguments.device,
            "tensorboard": False,
            "data": arguments.data,
            "data_dir": arguments.data_dir,
            "in_memory": arguments.data == "imagefolder",
            "image_size": arguments.image_size,
            "run_dir": folder,
            unit: int(amount),
            "momentum_follows_density": False,  # in results without that setting it did not
            **settings,
            **run["settings"],
        },
    )


def execute(run: Run, arguments: argparse.Namespace) -> Run:
    """Train, in this process; the whole result."""
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        settings = config(run, arguments, folder)
        device = pick_device(settings, 0)
        images = _images(settings.model_copy(update={"run_dir": None}).model_dump_json(), device)
        started = time.perf_counter()
        summary = lockstep.run(
            run["workers"], lambda worker: train(settings, device, worker, images)
        )[0]
        seconds = time.perf_counter() - started
        lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
    evaluations = [row for row in map(json.loads, lines) if row["kind"] == "evaluation"]
    return {
        **run,
        "steps": summary["steps"],
        "settled_steps": summary["settled_steps"],
        "top1": summary["top1"],
        "loss": summary["loss"],
        "replicas_min": summary["top1_replicas_min"],
        "replicas_mean": summary["top1_replicas_mean"],
        "bytes_per_step": summary["bytes_sent_per_step"],
        "bytes_total": summary["bytes_sent_total"],
        "dense_bytes_per_step": summary["dense_bytes_per_step"],
        "seconds": round(seconds, 1),
        "curve": [[row["epoch"], round(row["top1"], 3)] for row in evaluations],
        "device": summary["device"],
        "ggs": __version__,
        "torch": torch.__version__,
    }


def _images(settings: str, device: torch.device) -> tuple[ImageSet, ImageSet]:
    """The images of a configuration, kept for the next run of this process that reads the same."""
    values = json.loads(settings)
    names = ("model", "model_options", "data", "data_dir", "image_size", "in_memory", "augment",
             "channels_last", "seed")  # fmt: skip
    return _load_images(json.dumps({name: values[name] for name in names}), device)


@functools.lru_cache(maxsize=1)
def _load_images(settings: str, device: torch.device) -> tuple[ImageSet, ImageSet]:
    config = build(TrainConfig, json.loads(settings))
    return data.load(config, data.spec(config), device)


def study(runs: Sequence[Run], arguments: argparse.Namespace) -> int:
    """Train ``runs``, ``--jobs`` at once, and append each result as it comes; how many failed.

    Ctrl-C and SIGTERM end the runs under way at once: KeyboardInterrupt.
    """
    failed = 0
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(finished(arguments.jobs, execute, runs, arguments)) as results:
        for done, (run, result) in enumerate(results, 1):
            name = " ".join(
                str(run[k]) for k in ("method", "optimizer", "density", "density_warmup")
            )
            where = f"[{done}/{len(runs)}] {name} seed {run['seed']}"
            if isinstance(result, GGSError):
                failed += 1
                print(f"{where}: {result}", file=sys.stderr, flush=True)
                continue
            with arguments.out.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{where}: {result['top1']:.2f} % in {result['seconds']:.0f} s", flush=True)
            if not result["settled_steps"] and run["method"] != "dense" and run["density"] < 1:
                print(
                    f"{where}: the density warm-up, {run['density_warmup']}, lasted to the end of the "
                    f"run: density {run['density']:g} was never reached",
                    file=sys.stderr,
                    flush=True,
                )
    return failed


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )  # fmt: skip
    add = parser.add_argument
    add("--model", default="lenet5")
    add("--data", default="mnist5k", help="as in ggs train")
    add("--data-dir", type=Path, default=Path("data"))
    add("--name", help="what the results call the data; unset: --data")
    add("--image-size", type=int)
    add("--methods", type=_list(str), default="dense,ggs,gs", help="of dense, ggs, gs, dgc")
    add("--optimizers", type=_list(str), default="adam", help=f"of {', '.join(LEARNING_RATES)}")
    add("--lr", type=_positive, help="unset: " + str(LEARNING_RATES))
    add("--densities", type=_list(float), default="1e-3,1e-4")
    add("--density-warmups", type=_list(str), default="1 epoch", help="e.g. '0,1 epoch,200 steps'")
    add("--scopes", type=_list(str), default="global", help="of global, tensor")
    add("--values", type=_list(str), default="fp32", help="of fp32, bf16, int8, int4, sign")
    add("--batchnorms", type=_list(str), default="average",
        help="of average, local, dense, recalibrate; dense training has dense")  # fmt: skip
    add("--workers", type=_count, default=4)
    add("--batch-size", type=_count, default=64, help="per worker")
    add("--seeds", type=_count, default=3, help="how many: 0, 1, ...")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=_count, default=3)
    length.add_argument("--steps", type=_count)
    add("--set", dest="settings", action="append", default=[], metavar="NAME=VALUE",
        help="any other setting of ggs train, for all runs; may be repeated")  # fmt: skip
    add("--device", default="cpu", help="cpu, cuda or auto")
    add("--jobs", type=_count, default=1, help="runs at once")
    add("--out", type=Path, required=True, help="JSON lines")
    arguments = parser.parse_args(argv)
    arguments.settings = dict(_setting(parser, text) for text in arguments.settings)
    unknown = set(arguments.optimizers) - LEARNING_RATES.keys()
    if unknown and arguments.lr is None:
        parser.error(f"no learning rate is known for {', '.join(sorted(unknown))}: give --lr")
    if arguments.data == "imagefolder" and not arguments.name:
        parser.error("--data imagefolder: give --name, what the results call these images")
    arguments.accelerator = (
        torch.cuda.get_device_name()
        if arguments.device != "cpu" and torch.cuda.is_available()
        else None
    )
    if next(grid(arguments), None) is None:
        parser.error(
            "these are 0 runs: dgc is a method for sgd; give --optimizers sgd or other --methods"
        )
    return arguments


def _list(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def read(text: str) -> list[Any]:
        try:
            return [kind(part.strip()) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers") from None

    return read


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; give 1 or more")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; give a number above 0")
    return value


def _setting(parser: argparse.ArgumentParser, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        parser.error(f"--set {text}: give NAME=VALUE")
    if name in _OPTIONS:
        parser.error(
            f"--set {text}: give it as an option of this program, which tells runs apart by it"
        )
    return name, yaml.safe_load(value)


def _cut_off_half_line(path: Path) -> None:
    """What a killed study left of its last line; a whole one without its end gets that."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    rest = content[whole:]
    try:
        json.loads(rest)
    except ValueError:
        if _BEGINNING.startswith(rest[: len(_BEGINNING)]):
            os.truncate(path, whole)
    else:
        path.write_bytes(content + b"\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, then print the tables."""
    arguments = parse(argv)
    runs = list(grid(arguments))
    try:
        for run in runs:
            check(config(run, arguments, "unused"))
    except GGSError as error:
        print(f"accuracy.py: {error}", file=sys.stderr)
        return 2
    try:
        return _complete(runs, arguments)
    except KeyboardInterrupt:
        print(f"accuracy.py: interrupted; the same command goes on from what is in {arguments.out}",
              file=sys.stderr)  # fmt: skip
        return INTERRUPTED
    except BrokenProcessPool:
        print(f"accuracy.py: a training process was killed, most often for its memory: give fewer --jobs; "
              f"the same command goes on from what is in {arguments.out}", file=sys.stderr)  # fmt: skip
    except ResultsError as error:
        print(f"accuracy.py: {error}", file=sys.stderr)
    except OSError as error:
        print(f"accuracy.py: {arguments.out}: {error.strerror or error}", file=sys.stderr)
    return 1


def _complete(runs: list[Run], arguments: argparse.Namespace) -> int:
    there = set()
    if arguments.out.exists():
        _cut_off_half_line(arguments.out)
        there = {identity(run) for run in load([arguments.out])}
    missing = [run for run in runs if identity(run) not in there]
    print(f"{len(runs)} runs, {len(runs) - len(missing)} of them in {arguments.out}", flush=True)
    failed = study(missing, arguments) if missing else 0
    wanted = {identity(run) for run in runs}
    found = load([arguments.out]) if arguments.out.exists() else []
    print(tables([run for run in found if identity(run) in wanted]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

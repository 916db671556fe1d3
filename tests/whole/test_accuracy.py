"""The accuracy study: what it runs, that it resumes, and what its tables say."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ggs.train.arguments import build
from ggs.train.config import TrainConfig
from ggs.train.worker import train
from tests.worker_pool import WorkerPool


@pytest.fixture
def accuracy(benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark("accuracy")


@pytest.fixture
def accuracy_tables(benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark("accuracy_tables")


def arguments(out: Path, *more: str) -> list[str]:
    return [
        "--steps", "4", "--workers", "2", "--batch-size", "8", "--seeds", "1", "--methods", "dense,ggs",
        "--densities", "0.01", "--density-warmups", "2 steps", "--out", str(out), *more,
    ]  # fmt: skip


def _train(rank: int, size: int, config: TrainConfig) -> dict[str, Any]:
    return train(config, torch.device("cpu"), None)


@pytest.mark.full
def test_it_trains_what_is_missing_as_processes_would(
    accuracy: ModuleType, tmp_path: Path, workers: WorkerPool, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.jsonl"
    assert accuracy.main(arguments(out)) == 0
    first = out.read_text()
    dense, sparse = map(json.loads, first.splitlines())
    assert (dense["method"], sparse["method"]) == ("dense", "ggs")
    config = build(TrainConfig, {
        "method": "ggs", "density": 0.01, "density_warmup": "2 steps", "steps": 4, "batch_size": 8,
        "device": "cpu", "run_dir": tmp_path / "run",
    })  # fmt: skip
    summary = workers.run(2, _train, config)[0]
    assert sparse["top1"] == summary["top1"]
    assert sparse["loss"] == summary["loss"]
    assert sparse["bytes_per_step"] == summary["bytes_sent_per_step"]
    assert sparse["curve"] == [[summary["epochs"], summary["top1"]]]
    assert sparse["steps"] == 4
    table = capsys.readouterr().out
    assert f"| adam | 0.01 | 2 steps | ggs | {sparse['top1']:.2f} | 1 |" in table

    out.write_text(first + first[:40])  # a study that was killed while it wrote
    assert accuracy.main(arguments(out)) == 0
    assert out.read_text() == first
    assert "2 runs, 2 of them in" in capsys.readouterr().out

    assert accuracy.main(arguments(out, "--values", "fp32,int8", "--set", "clip_norm=1.5")) == 0
    added = [json.loads(line) for line in out.read_text().splitlines()[2:]]
    assert [run["values"] for run in added] == [None, "fp32", "int8"]
    assert {run["settings"]["clip_norm"] for run in added} == {1.5}


@pytest.mark.full
def test_batchnorm_modes_are_compared(
    accuracy: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results.jsonl"
    own = ("--model", "cifarnet_batchnorm:cifarnet_batchnorm", "--batchnorms", "average,dense")
    assert accuracy.main(arguments(out, *own)) == 0
    runs = [json.loads(line) for line in out.read_text().splitlines()]
    by_mode = {run["batchnorm"]: run for run in runs if run["method"] == "ggs"}
    assert len(runs) == 3
    average, dense = by_mode["average"], by_mode["dense"]
    assert average["replicas_min"] <= average["replicas_mean"]
    assert dense["replicas_mean"] is None  # all workers have the same layers
    assert dense["bytes_per_step"] > average["bytes_per_step"]  # its weights and biases travel too
    head, _, *lines = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert head.endswith("| whole run | replicas, mean | replicas, worst |")
    found = f"| {average['replicas_mean']:.2f} | {average['replicas_min']:.2f} |"
    assert [line.endswith(found) for line in lines] == [False, True, False]


def test_the_grid_has_each_comparison_once(accuracy: ModuleType, tmp_path: Path) -> None:
    parsed = accuracy.parse([
        "--methods", "dense,ggs,gs,dgc", "--optimizers", "adam,sgd", "--densities", "1e-2,1e-3",
        "--density-warmups", "0,1 epoch", "--seeds", "2", "--out", str(tmp_path / "none"),
    ])  # fmt: skip
    runs = list(accuracy.grid(parsed))
    assert len({accuracy.identity(run) for run in runs}) == len(runs)
    counts = {(m, o): 0 for m in ("dense", "ggs", "gs", "dgc") for o in ("adam", "sgd")}
    for run in runs:
        counts[run["method"], run["optimizer"]] += 1
    assert counts.pop(("dgc", "adam")) == 0
    assert counts.pop(("dense", "adam")) == counts.pop(("dense", "sgd")) == 2
    assert set(counts.values()) == {8}
    assert {run["lr"] for run in runs if run["optimizer"] == "sgd"} == {0.05}
    first_half = runs[: len(runs) // 2]
    assert {run["seed"] for run in first_half} == {0}  # an unfinished study compares all methods


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--methods", "ggs,topk"), "method: topk is not allowed"),
        (("--values", "fp7"), "values: fp7 is not allowed"),
        (("--set", "clip_nrom=1"), "'clip_nrom' is no setting, did you mean clip_norm?"),
        (("--density-warmups", "1"), "density_warmup"),
        (("--data", "mnist", "--data-dir", "/nowhere"), "data_dir: mnist is not in /nowhere"),
        (("--batch-size", "4000"), "batch_size: 4000 x accumulate 1 x 2 worker(s)"),
        (("--model", "lenet6"), "model: lenet6 is unknown, did you mean lenet5?"),
    ],
)
def test_what_is_wrong_is_told_before_anything_runs(
    accuracy: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    assert accuracy.main(arguments(tmp_path / "none", *more)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "none").exists()


def test_an_optimizer_without_a_rate_needs_one(accuracy: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        accuracy.parse(arguments(tmp_path / "none", "--optimizers", "radam"))
    parsed = accuracy.parse(arguments(tmp_path / "none", "--optimizers", "radam", "--lr", "0.002"))
    assert {run["lr"] for run in accuracy.grid(parsed)} == {0.002}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--densities", "abc"), "'abc' is no list of numbers"),
        (("--lr", "0"), "0 is not allowed; give a number above 0"),
        (("--seeds", "0"), "0 is not allowed; give 1 or more"),
        (("--workers", "-1"), "-1 is not allowed; give 1 or more"),
        (("--steps", "0"), "0 is not allowed; give 1 or more"),
        (("--methods", "dgc"), "dgc is a method for sgd"),
        (("--set", "seed=5"), "give it as an option of this program"),
        (("--data", "imagefolder"), "give --name"),
    ],
)
def test_what_cannot_be_a_study_is_refused(
    accuracy: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...], message: str,
) -> None:  # fmt: skip
    with pytest.raises(SystemExit):
        accuracy.parse(arguments(tmp_path / "none", *more))
    assert message in capsys.readouterr().err


def test_images_of_another_size_are_another_run(accuracy: ModuleType, tmp_path: Path) -> None:
    runs = [
        run
        for size in ((), ("--image-size", "32"))
        for run in accuracy.grid(accuracy.parse(arguments(tmp_path / "none", *size)))
    ]
    assert len({accuracy.identity(run) for run in runs}) == len(runs) == 4


def test_a_density_that_is_never_reached_is_told_of(
    accuracy: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--methods", "ggs", "--density-warmups", "1 epoch")
    assert accuracy.main(arguments(tmp_path / "results.jsonl", *more)) == 0
    shown = capsys.readouterr()
    assert "density 0.01 was never reached" in shown.err
    assert re.search(r"\| ggs \| [\d.]+ \| 1 \| - \| - \| - \| 1\.0x \|", shown.out)


def test_a_warm_up_is_one_however_it_is_written(accuracy: ModuleType, tmp_path: Path) -> None:
    found = set()
    for text in ("1 epoch", "1epochs", "1.0 EPOCH"):
        more = ("--methods", "ggs", "--density-warmups", text)
        found |= set(
            map(accuracy.identity, accuracy.grid(accuracy.parse(arguments(tmp_path, *more))))
        )
    assert len(found) == 1


@pytest.mark.parametrize(
    ("rest", "becomes"),
    [
        ('{"model": "le', ""),
        ('{"model": "lenet5", "top1": 9.0}', '{"model": "lenet5", "top1": 9.0}\n'),
        ("my notes", "my notes"),
    ],
)
def test_only_half_a_result_is_cut_off(
    accuracy: ModuleType, tmp_path: Path, rest: str, becomes: str
) -> None:
    path = tmp_path / "file"
    path.write_text("{}\n" + rest)
    accuracy._cut_off_half_line(path)
    assert path.read_text() == "{}\n" + becomes


def result(method: str, seed: int, top1: float, **other: Any) -> dict[str, Any]:
    dense = method == "dense"
    return {
        "model": "lenet5", "data": "mnist", "length": "3 epochs", "method": method, "optimizer": "adam",
        "lr": 0.001, "density": 1.0 if dense else 0.001, "density_warmup": None if dense else "1 epoch",
        "scope": None if dense else "global", "values": None if dense else "fp32",
        "batchnorm": "dense" if dense else "average", "workers": 4, "batch_size": 64, "seed": seed,
        "settings": {}, "image_size": None, "accelerator": None,
        "top1": top1, "replicas_min": None, "replicas_mean": None, "bytes_per_step": 1000,
        "dense_bytes_per_step": 370_000, "steps": 100, "bytes_total": 1_000_000, **other,
    }  # fmt: skip


def test_tables_compare_seed_by_seed(accuracy_tables: ModuleType) -> None:
    runs = [
        result("dense", 0, 98.0),
        result("dense", 1, 99.0),
        result("ggs", 1, 98.8),
        result("ggs", 0, 98.2),
        result("ggs", 2, 90.0),  # dense has no such seed
        result("gs", 0, 97.5),
        result("dense", 0, 50.0, length="10 epochs"),
    ]
    text = accuracy_tables.tables(runs)
    lines = text.splitlines()
    assert lines[0] == "lenet5 on mnist, 3 epochs, 4 workers x batch 64"
    assert lines[4] == "| adam | 1 | - | dense | 98.50 ± 0.71 | 2 | - | 1,000 | - | - |"
    assert (
        lines[5]
        == "| adam | 0.001 | 1 epoch | ggs | 95.67 ± 4.92 | 3 | +0.00 (2) | 1,000 | 370x | 37.0x |"
    )
    assert lines[6] == "| adam | 0.001 | 1 epoch | gs | 97.50 | 1 | -0.50 | 1,000 | 370x | 37.0x |"
    assert "lenet5 on mnist, 10 epochs, 4 workers x batch 64" in lines


def test_the_command_of_the_results_page_makes_its_tables(
    accuracy_tables: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    files = sorted((docs / "results").glob("*.jsonl"))
    assert len(files) > 2
    assert accuracy_tables.main([str(path) for path in files]) == 0
    page = (docs / "results.md").read_text().partition("## What these")[0]
    printed, shown = (
        sorted(line for line in text.splitlines() if line.startswith("| "))
        for text in (capsys.readouterr().out, page)
    )
    assert printed == shown


def test_a_column_appears_where_runs_differ_in_it(accuracy_tables: ModuleType) -> None:
    runs = [result("ggs", 0, 98.0), result("ggs", 0, 97.0, values="int8")]
    lines = accuracy_tables.tables(runs).splitlines()
    assert lines[2].startswith(
        "| optimizer | density | density warm-up | method | values | top-1 %"
    )
    assert "| ggs | int8 | 97.00 | 1 | - |" in lines[5]


def test_plots_are_the_same_every_time(accuracy_tables: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    runs = [result(m, s, 97.0 + s) for m in ("dense", "ggs", "gs") for s in (0, 1)] + [
        result("ggs", 0, 96.0, density=0.0001, density_warmup="0")
    ]
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (path,) = accuracy_tables.plot(runs, tmp_path / name)
        assert path.name == "mnist-lenet5.svg"
        files.append(path.read_bytes())
    assert files[0] == files[1]
    assert b"<svg" in files[0]


def test_plots_show_sparse_runs_whatever_settings_all_have(
    accuracy_tables: ModuleType, tmp_path: Path
) -> None:
    """The published plots once showed dense training alone: the study pins the exchange."""
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    pinned = {"settings": {"exchange": "allgather"}}
    runs = [result(method, 0, 97.0, **pinned) for method in ("dense", "ggs", "gs")]
    (path,) = accuracy_tables.plot(runs, tmp_path)
    text = path.read_text()
    assert ">ggs, warm-up 1 epoch<" in text
    assert ">gs, warm-up 1 epoch<" in text
    assert ">adam, 3 epochs<" in text
    (path,) = accuracy_tables.plot([*runs, result("ggs", 0, 90.0)], tmp_path)
    text = path.read_text()
    assert ">adam, 3 epochs, exchange allgather<" in text
    assert ">adam, 3 epochs, -<" in text  # runs with other settings are not on one line with these


def test_the_published_plots_are_those_of_the_published_results(
    accuracy_tables: ModuleType, root: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    docs = root / "docs"
    runs = accuracy_tables.load(sorted((docs / "results").glob("*.jsonl")))
    for path in accuracy_tables.plot(runs, tmp_path):
        shown = (docs / "results" / path.name).read_text()
        assert texts(shown) == texts(path.read_text()), path.name
        assert f"(results/{path.name})" in (docs / "results.md").read_text()


def texts(svg: str) -> list[str]:
    """All words of a picture; its lines and ticks depend on the version of matplotlib."""
    return re.findall(r"<text[^>]*>([^<]*[a-z][^<]*)</text>", svg)


def test_ones_own_model_is_called_by_its_function(
    accuracy_tables: ModuleType, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    runs = [result("dense", 0, 98.0, model="my.models:net", data="own (2 x 2)")]
    (path,) = accuracy_tables.plot(runs, tmp_path)
    assert path.name == "own-2-x-2-net.svg"
    assert accuracy_tables.tables(runs).startswith("net on own (2 x 2), 3 epochs")


def test_a_run_that_is_there_twice_counts_once(accuracy_tables: ModuleType, tmp_path: Path) -> None:
    files = [tmp_path / "one.jsonl", tmp_path / "other.jsonl"]
    for path, top1 in zip(files, (98.0, 97.0), strict=True):
        path.write_text(json.dumps(result("dense", 0, top1)) + "\n")
    assert [run["top1"] for run in accuracy_tables.load(files)] == [98.0]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"model": 1,}', "is no JSON (Illegal trailing comma") if sys.version_info >= (3, 13) else
        ('{"model": 1,}', "is no JSON (Expecting property name"),
        ("<<<<<<<", "is no JSON (Expecting value"),
        ("7", "is no result but 7"),
        ('{"top1": 98.0}', "has no data, image_size, model"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_result_is_told_of(
    accuracy_tables: ModuleType, accuracy: ModuleType, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], line: str, problem: str,
) -> None:  # fmt: skip
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(result("dense", 0, 98.0)) + f"\n{line}\n")
    before = path.read_bytes()
    for program, call in (accuracy_tables, [str(path)]), (accuracy, arguments(path)):
        assert program.main(call) != 0
        said = capsys.readouterr().err
        assert f"line 2 of {path} {problem}" in said
        assert said.count("\n") == 1
    assert path.read_bytes() == before


def command(pid: str) -> bytes:
    """A process's command; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # before, or while it is read
        return b""


@pytest.mark.full
@pytest.mark.parametrize("whom", ["the program", "its process group"])
def test_an_interrupted_study_ends_at_once_and_can_go_on(
    root: Path, tmp_path: Path, whom: str
) -> None:
    out = tmp_path / "results.jsonl"
    lengthy = arguments(out, "--methods", "dense", "--seeds", "200")
    study = subprocess.Popen(
        [sys.executable, str(root / "benchmarks" / "accuracy.py"), *lengthy],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert study.stdout is not None
    try:
        while not (line := study.stdout.readline()).startswith("[1/200]"):
            assert line, study.communicate()[1]
        children = Path(f"/proc/{study.pid}/task/{study.pid}/children").read_text().split()
        training = [child for child in children if b"spawn_main" in command(child)]
        (os.kill if whom == "the program" else os.killpg)(study.pid, signal.SIGINT)
        output, said = study.communicate(timeout=60)
    finally:
        study.kill()
    assert study.returncode == 130
    assert said == (f"accuracy.py: interrupted; the same command goes on from what is in {out}\n")
    finished = len(out.read_text().splitlines())
    told = 1 + output.count("[")
    assert told <= finished < 200
    assert finished <= told + 1  # Ctrl-C may come when a result is in the file and not yet told of
    assert training
    assert not any(map(command, training))


@pytest.mark.parametrize(
    "other",
    [
        {"batchnorm": "local"},
        {"scope": "tensor"},
        {"values": "int8"},
    ],
)
def test_plots_show_the_defaults_only(
    accuracy_tables: ModuleType, tmp_path: Path, other: dict[str, Any]
) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    runs = [result("dense", 0, 98.0), result("ggs", 0, 97.0), result("ggs", 1, 97.5)]
    files = []
    for name, more in (("a", []), ("b", [result("ggs", 0, 50.0, **other)])):
        (tmp_path / name).mkdir()
        (path,) = accuracy_tables.plot(runs + more, tmp_path / name)
        files.append(path.read_bytes())
    assert files[0] == files[1]

"""What is to be measured on a GPU, in small on the CPU: a day with a GPU must not fail on a typo."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Import = Callable[[str], ModuleType]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def finished(part: str, tiny: bool = True) -> str:
    return json.dumps({"part": part, "name": "end", "tiny": tiny, "done": True}) + "\n"


@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_part_leaves_its_rows_and_is_not_run_again(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "gpu.jsonl"
    command = [
        str(root / "benchmarks" / "gpu.sh"),
        "--dry-run",
        "--minutes",
        "14",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = rows(out)
    names: dict[str, set[str]] = {}
    for row in found:
        assert row["tiny"]
        assert row["device"] == "cpu"
        assert row["torch"]
        names.setdefault(row["part"], set()).add(row["name"])
    assert names == {
        "tests": {"cuda", "end"},
        "equality": {"selection", "codec", "end"},
        "selection": {
            "add_", "select + clear", "select + clear + encode", "compare + nonzero, threshold known",
            "sampled threshold (DGC)", "torch.topk", "select / add_", "end",
        },
        "step squeezenet1_1": {"GGS / Adam", "end"},
        "train squeezenet1_1": {"none", "ddp", "ggs", "GGS / dense", "end"},
        "memory": {"squeezenet1_1 none", "squeezenet1_1 ggs", "squeezenet1_1 GGS / dense", "end"},
        "cifar10": {"dense", "ggs", "end"},
    }  # fmt: skip
    assert all(row["equal"] for row in found if row["name"] in ("selection", "codec"))
    assert sum(row["steps_by_kernels"] for row in found if row["name"] == "selection") > 0
    assert all(row["finished"] and row["curve"] for row in found if row["name"] in ("dense", "ggs")
               and row["part"] == "cifar10")  # fmt: skip
    nccl = [row for row in found if row.get("backend") == "nccl"]
    assert ["NCCL refuses two processes on one GPU" in row["skipped"] for row in nccl] == [True]

    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert rows(out) == found


def test_what_does_not_fit_is_named_and_not_begun(benchmark: Import, tmp_path: Path) -> None:
    gpu, out = benchmark("gpu"), tmp_path / "gpu.jsonl"
    out.write_text(finished("tests") + finished("equality", tiny=False) + '{"part": "sel')
    assert gpu.main(["--dry-run", "--minutes", "0", "--out", str(out)]) == 0
    last = json.loads(out.read_text().splitlines()[-1])  # the half line has not swallowed it
    assert last["left"] == [
        "equality", "selection", "step squeezenet1_1", "train squeezenet1_1", "memory", "cifar10"
    ]  # fmt: skip


def test_a_part_that_fails_costs_only_itself(
    benchmark: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, out = benchmark("gpu"), tmp_path / "gpu.jsonl"
    script = tmp_path / "part.py"
    script.write_text("import sys; sys.exit(3 * ('memory' in sys.argv))")
    monkeypatch.setattr(gpu, "__file__", str(script))
    assert gpu.main(["--dry-run", "--out", str(out)]) == 1
    ends = {row["part"]: row["done"] for row in rows(out)}
    assert ends.pop("memory") is False
    assert len(ends) == 6
    assert all(ends.values())
    assert gpu.main(["--dry-run", "--out", str(out)]) == 1  # the failed one is tried again
    assert [row["part"] for row in rows(out)][7:] == ["memory"]


def test_without_a_gpu_it_says_so(
    benchmark: Import, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert benchmark("gpu").main(["--out", str(tmp_path / "gpu.jsonl")]) == 2
    assert "this torch sees no GPU" in capsys.readouterr().err


def test_without_the_tests_packages_a_row_says_what_is_missing(
    benchmark: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, parts = benchmark("gpu"), benchmark("gpu_parts")
    monkeypatch.setattr(parts, "find_spec", lambda name: None if name == "pytest" else name)
    parts.run_tests(parts.TINY, gpu.Results(tmp_path / "gpu.jsonl", {"tiny": True}))
    assert rows(tmp_path / "gpu.jsonl") == [
        {"part": "tests", "name": "cuda", "tiny": True, "skipped": "not installed: pytest"}
    ]


def test_training_without_images_stays_open(benchmark: Import, tmp_path: Path) -> None:
    gpu, cifar10 = benchmark("gpu"), benchmark("gpu_cifar10")
    options = gpu.argparse.Namespace(
        out=tmp_path / "gpu.jsonl", data_dir=None, dry_run=False, seconds=60
    )
    cifar10.train(options, gpu.Results(options.out, {"tiny": False}))
    assert rows(options.out)[0]["skipped"] == "no --data-dir: nothing to train on"
    assert not gpu.cifar10_is_done(options)

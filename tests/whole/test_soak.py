"""The soak: it says when something is wrong, and takes its tasks along however it ends."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"


@pytest.fixture(scope="module")
def soak() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tasks_of(soak: int) -> list[int]:
    """Processes that work for the soak with this process id."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and f"=soak-{soak}-".encode() in (entry / "environ").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def until(condition: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (found := bool(condition())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


# Three processes: both launchers, and a worker of one of them.
@pytest.mark.timeout(300)  # a machine that does other things takes long to import torch
@pytest.mark.parametrize(
    ("kind", "processes"),
    [(signal.SIGINT, 2), (signal.SIGTERM, 3), (signal.SIGHUP, 2), (signal.SIGKILL, 3)],
)
def test_an_interrupted_soak_leaves_no_task_running(
    kind: signal.Signals, processes: int, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), "--kills", "1"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,  # no terminal sends the signal to the tasks too
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert until(lambda: len(tasks_of(process.pid)) >= processes, 120)
        finally:
            process.send_signal(kind)
        code = process.wait(120)
    assert code == (-kind if kind == signal.SIGKILL else 128 + kind)
    assert until(lambda: not tasks_of(process.pid), 60), tasks_of(process.pid)
    assert kind == signal.SIGKILL or list(tmp_path.glob("ggs-*")) == []


@pytest.mark.parametrize("name", [None, "hangs", "differences", "orphans", "unclean_ends"])
def test_what_went_wrong_is_the_exit_code(soak: ModuleType, name: str | None) -> None:
    result = dict.fromkeys(["kills", "hangs", "differences", "orphans", "unclean_ends"], 0)
    result["kills"] = 5
    if name is not None:
        result[name] = 1
    assert soak.exit_code(result) == (name is not None)


def test_differences_are_counted(soak: ModuleType, tmp_path: Path) -> None:
    row = {"step": 7, "loss": 0.5, "seconds": 1.0}
    summary = dict.fromkeys(
        ["top1", "loss", "steps", "epochs", "bytes_sent_total", "density", "skipped_steps"], 1
    )
    for name, seconds in (("one", 1.0), ("same", 2.0), ("other", 1.0)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights" if name != "other" else b"Weights")
        other = {"loss": 0.25} if name == "other" else {}
        line = json.dumps(row | {"seconds": seconds} | other)
        (folder / "metrics.jsonl").write_text(line + "\n")
        (folder / "summary.json").write_text(json.dumps(summary | other))
    assert soak.differ(tmp_path / "one", tmp_path / "same") == 0
    assert soak.differ(tmp_path / "one", tmp_path / "other") == 3

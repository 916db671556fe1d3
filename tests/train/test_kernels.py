"""Kernels are compiled before a run's first step, and by one worker of a machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ggs.train import worker
from ggs.train.arguments import build
from ggs.train.config import TrainConfig
from ggs.wire import VALUES_FORMATS

COUNT_WHAT_STEPS_ADD = """
import sys, torch, ggs
from ggs import compiled
from ggs.dist import lockstep
from ggs.train.kernels import compile_kernels

compile_kernels(sys.argv[1])
known = sum(len(kernel.signatures) for kernel in compiled._kernels)

def train(worker, density, scope):
    dtype = torch.float64 if sys.argv[1] == "fp64" else torch.float32
    model = torch.nn.Sequential(torch.nn.Linear(60, 70), torch.nn.Linear(70, 50)).to(dtype)
    inner = torch.optim.Adam(model.parameters())
    optimizer = ggs.GGS(inner, model, density, scope=scope, values=sys.argv[1], process_group=worker)
    for step in range(3):
        model(torch.full((4, 60), step + worker.rank + 1, dtype=dtype)).sum().backward()
        optimizer.step()

for scope in ("global", "tensor"):
    for density in (0.7, 0.1, 0.01):
        lockstep.run(2, train, density, scope)
print(known, sum(len(kernel.signatures) for kernel in compiled._kernels))
"""


@pytest.mark.usefixtures("_compiled")  # so that the process reads them
@pytest.mark.parametrize(
    "values_format",
    [
        pytest.param(name, marks=[] if name in ("fp32", "int4") else pytest.mark.full)
        for name in VALUES_FORMATS
    ],
)
def test_no_step_of_a_run_has_to_compile_anything(values_format: str) -> None:
    done = subprocess.run([sys.executable, "-c", COUNT_WHAT_STEPS_ADD, values_format], text=True,
                          capture_output=True, check=True)  # fmt: skip
    before, after = done.stdout.split()
    assert int(before) > 10
    assert after == before


@pytest.mark.parametrize("local_rank", [0, 1])
def test_the_first_worker_of_a_machine_compiles_before_the_others_go_on(
    local_rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    calls: list[str] = []

    def called(name: str, result: float | None = None) -> Callable[..., float | None]:
        return lambda *_: calls.append(name) or result  # type: ignore[func-returns-value]

    monkeypatch.setattr(worker, "compile_kernels", called("compile", 3.0))
    monkeypatch.setattr(worker, "_join", called("join"))
    monkeypatch.setattr(worker, "train", called("train"))
    worker.main(build(TrainConfig, {"device": "cpu", "threads": 1}))
    assert calls == (
        ["compile", "join", "train"] if local_rank == 0 else ["join", "compile", "train"]
    )
    said = capsys.readouterr().out
    assert said.startswith("ggs: compiled selection and coding for this CPU in 3 s") == (
        local_rank == 0
    )


@pytest.mark.full
def test_one_worker_compiles_for_all_and_only_in_the_first_run(tmp_path: Path) -> None:
    train = [sys.executable, "-m", "ggs.cli.main", "train", "--workers", "2", "--steps", "2", "--overwrite",
             "--run-dir", str(tmp_path / "run")]  # fmt: skip
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    lines = []
    for _ in range(2):
        done = subprocess.run(train, text=True, capture_output=True, env=variables, check=True)
        lines.append([line for line in done.stdout.splitlines() if "compiled" in line])
    assert len(lines[0]) == 1
    assert lines[0][0].startswith("ggs: compiled selection and coding for this CPU in ")
    assert lines[1] == []

"""Kernels are compiled before a run's first step, and by one worker of a machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("values_format", VALUES_FORMATS)
def test_no_step_of_a_run_has_to_compile_anything(values_format: str) -> None:
    done = subprocess.run([sys.executable, "-c", COUNT_WHAT_STEPS_ADD, values_format], text=True,
                          capture_output=True, check=True)  # fmt: skip
    before, after = done.stdout.split()
    assert int(before) > 10
    assert after == before


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

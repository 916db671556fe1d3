"""The layering: imports go down only; what must start fast imports no torch."""

import ast
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

import ggs

# From the ground up. A module may import from its own layer only where it is a package of its own.
LAYERS = [
    {"errors", "plain_yaml", "statistics", "lockstep", "clock", "command_line"},
    {
        "schedule",
        "compiled",
        "select_steering",
        "wire_layout",
        "collectives",
        "flat",
        "support",
        "state",
        "gradients",
        "cost",
    },
    {"select_kernels", "select_triton", "wire_kernels"},
    {"select_cpu", "wire_torch", "wire_cpu", "agreement"},
    {"select", "wire", "capture", "batchnorm"},
    {"exchange", "replicas"},
    {"wrapper"},
    {"dense", "scaler"},
    {"residual"},
    {"optimizer", "baselines"},
    {"pai"},
    {"gpus", "variables"},
    {"train", "diagnose"},
    {"report", "plan"},
    {"cli"},
]


def layer_of(name: str) -> int:
    return next((i for i, layer in enumerate(LAYERS) if name in layer), -1)


def imported(path: Path) -> set[str]:
    """The first parts below ``ggs`` of everything that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ggs":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("ggs.")}
    return {name for name in found if not name.startswith("__")}


def test_imports_go_down_only(root: Path) -> None:
    wrong = []
    for path in sorted((root / "ggs").rglob("*.py")):
        own = path.relative_to(root / "ggs").with_suffix("").parts[0]
        if own == "__init__":
            continue
        assert layer_of(own) >= 0, f"{own} is in no layer: add it to LAYERS"
        for name in imported(path):
            same_package = name == own
            if not same_package and layer_of(name) >= layer_of(own) and path.name != "cli.py":
                wrong.append(f"{path.relative_to(root)} imports ggs.{name}")
    assert wrong == []


def test_layers_and_the_map_have_all_modules_and_no_others(root: Path) -> None:
    places = (root / "ggs").iterdir()
    found = [path for path in places if path.suffix == ".py" or any(path.glob("*.py"))]
    modules = {path.stem for path in found if path.name[:2] != "__"}
    assert set().union(*LAYERS) == modules
    map_ = (root / "docs" / "architecture.md").read_text()
    names = re.findall(r"(?<![/\w])(?:ggs/)?([\w*]+)(?:\.py|/)", map_)
    assert [m for m in sorted(modules) if not any(fnmatch(m, name) for name in names)] == []


def test_only_collectives_communicate(root: Path) -> None:
    """``torch.distributed`` calls live in one module, so every byte is counted there."""
    calls = {"all_gather", "all_reduce", "broadcast", "all_to_all_single", "reduce_scatter_tensor",
             "all_gather_into_tensor", "send", "recv", "isend", "irecv", "barrier"}  # fmt: skip
    for path in sorted((root / "ggs").glob("*.py")):
        if path.name == "collectives.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                owner = node.func.value
                is_dist = isinstance(owner, ast.Name) and owner.id in ("dist", "distributed")
                assert not (is_dist and node.func.attr in calls), f"{path.name}: {node.func.attr}"


@pytest.mark.parametrize(
    "module",
    [
        "ggs",
        "ggs.errors",
        "ggs.pai.environment",
        "ggs.pai.cli",
        "ggs.pai.validate",
        "ggs.plan",
        "ggs.report.page",
    ],
)
def test_starts_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_are_real_and_documented() -> None:
    assert sorted(ggs.__all__) == sorted(ggs._HOME)
    for name in ggs.__all__:
        assert getattr(ggs, name) is not None
        assert name in dir(ggs)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ggs.nothing  # noqa: B018

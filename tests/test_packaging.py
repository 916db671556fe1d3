"""What is imported is declared, and a missing extra is one line."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ggs.errors import ConfigurationError
from ggs.extras import DISTRIBUTION, MODULES, extras_named, require

CORE = {"torch", "numpy", "numba"}
DISTRIBUTIONS = {"PIL": "pillow", "yaml": "pyyaml", "vl_convert": "vl-convert-python"}
"""Of modules whose distribution has another name."""


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib")
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return table


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w-]+", text)[0].lower() for text in requirements}  # type: ignore[index]


def imported(root: Path) -> set[str]:
    found = set()
    for path in [root / "entrypoint.py", *(root / "ggs").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
    return found - set(sys.stdlib_module_names) - {"ggs"}


def test_what_is_imported_is_declared(root: Path) -> None:
    with_torch = {"triton"}  # torch brings it where it can use it
    assert imported(root) - CORE - with_torch == set().union(*MODULES.values())


def test_every_extra_brings_its_modules(project: dict[str, Any]) -> None:
    assert project["name"] == DISTRIBUTION
    assert names(project["dependencies"]) == CORE
    for extra, modules in MODULES.items():
        declared = names(project["optional-dependencies"][extra]) - {DISTRIBUTION}
        wanted = {DISTRIBUTIONS.get(m, m).replace("_", "-") for m in modules}
        assert declared == wanted, extra


def test_all_brings_every_extra_that_is_imported(project: dict[str, Any]) -> None:
    assert project["optional-dependencies"]["all"] == [f"{DISTRIBUTION}[{','.join(MODULES)}]"]


def test_a_missing_module_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    for preferred in ("train", "pai"):
        text = rf"^yaml is not installed: pip install 'gradient-sparsification\[{preferred}\]'$"
        with pytest.raises(ConfigurationError, match=text):
            require("yaml", preferred)
    with pytest.raises(ModuleNotFoundError), extras_named():
        import nowhere  # type: ignore[import-not-found]  # noqa: F401


# Modules that are installed here are hidden from the process that stands for an environment without them.
WITHOUT = """
import sys
for name in {hidden!r}:
    sys.modules[name] = None
sys.argv = {argv!r}
from ggs import console_scripts
console_scripts.{command}()
"""


@pytest.mark.parametrize(
    ("argv", "hidden", "extra"),
    [
        (["ggs", "--help"], ["typer"], "train"),
        (["ggs", "train", "--help"], ["pydantic"], "train"),
        (["ggs", "train", "--dry-run"], ["safetensors"], "train"),
        (["ggs", "train", "--model", "resnet18", "--dry-run"], ["torchvision"], "train"),
        (["ggs", "report", "docs"], ["jinja2"], "report"),
        (["pai", "job", "validate", "pai_jobs/smoke.yaml"], ["typer"], "pai"),
        (["pai", "job", "validate", "pai_jobs/smoke.yaml"], ["pydantic"], "pai"),
        (["pai", "job", "status", "ann~x", "--cluster", "test"], ["httpx"], "pai"),
        (["pai", "job", "run-local", "pai_jobs/smoke.yaml"], ["docker"], "pai"),
    ],
)
def test_a_command_without_its_extra_says_so_in_one_line(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argv: list[str],
    hidden: list[str],
    extra: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    code = WITHOUT.format(hidden=hidden, argv=argv, command=argv[0])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    line = done.stderr.strip()
    assert line.endswith(
        f"{hidden[0]} is not installed: pip install 'gradient-sparsification[{extra}]'"
    )
    assert "\n" not in line
    assert done.returncode == 2


def test_the_library_needs_no_extra() -> None:
    hidden = sorted(set().union(*MODULES.values()))
    code = f"""
import sys
for name in {hidden!r}:
    sys.modules[name] = None
import ggs, torch
model = torch.nn.Linear(30, 20)
optimizer = ggs.GGS(torch.optim.Adam(model.parameters()), model, density=0.1)
model(torch.ones(2, 30)).sum().backward()
optimizer.step()
print(optimizer.statistics.selected, all(hasattr(ggs, name) for name in ggs.__all__))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "62 True\n"

"""The layering: imports go down only; what must start fast imports no torch."""

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import ggs

ORDER = [
    "_version",
    "errors",
    "checks",
    "extras",
    "text",
    "output",
    "atomic_files",
    "signals",
    "plain_yaml",
    "command_line",
    "compiled",
    "dist",
    "select",
    "wire",
    "exchange",
    "optim",
    "launch",
    "train",
    "pai.job",
    "pai.client",
    "pai.validate",
    "pai.local",
    "pai.cli",
    "pai",
    "report",
    "cli",
    "console_scripts",
    "__init__",
]
"""Rooms from the ground up: files and folders of ``ggs``. A file may import from its own room and from
those before it."""


def module_name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imports(root: Path) -> dict[str, set[str]]:
    """By module, the modules of ``ggs`` that it imports: at its head, in functions, for types alone."""
    files = {module_name(path, root): path for path in sorted((root / "ggs").rglob("*.py"))}
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= {name if name in files else node.module for name in full}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
        found[module] = {name for name in names if name in files and name != module}
    return found


def room_of(module: str) -> str:
    inner = module.removeprefix("ggs").removeprefix(".") or "__init__"
    parts = inner.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((name for name in names if name in ORDER), "")


def test_imports_go_down_only(root: Path) -> None:
    graph = imports(root)
    assert [module for module in graph if not room_of(module)] == []
    wrong = []
    for module, names in graph.items():
        for name in names:
            own, other = room_of(module), room_of(name)
            if ORDER.index(other) > ORDER.index(own):
                wrong.append(f"{module} imports {name}")
    assert wrong == []


def test_no_file_imports_itself_by_way_of_others(root: Path) -> None:
    try:
        TopologicalSorter(imports(root)).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_rooms_are_those_that_exist_and_stand_on_the_map(root: Path) -> None:
    used = {room_of(module) for module in imports(root)}
    assert used == set(ORDER)
    page = (root / "docs" / "architecture.md").read_text()
    names = {room.split(".")[-1] for room in ORDER} - {"__init__", "_version"}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}(/|\.py|\b)", page)] == []


def test_only_dist_communicates(root: Path) -> None:
    """``torch.distributed`` is used in one package, where every byte is counted. Outside it there are only
    the classes of its elastic agent, and of its stores, with which the launcher starts workers.
    """
    elastic = {"PrefixStore", "TCPStore"}
    wrong = []
    for path in sorted((root / "ggs").rglob("*.py")):
        name = str(path.relative_to(root))
        if name.startswith("ggs/dist/"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                used = {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                used = {alias.name for alias in node.names}
            else:
                used = {ast.unparse(node)} if isinstance(node, ast.Attribute) else set()
            used = {text for text in used if f"{text}.".startswith("torch.distributed.")}
            if name.startswith("ggs/launch/"):
                allowed = {f"torch.distributed.{kind}" for kind in elastic}
                used = {
                    text for text in used - allowed
                    if not text.startswith("torch.distributed.elastic.")
                }  # fmt: skip
            wrong += [f"{name}: {text}" for text in sorted(used)]
    assert wrong == []


@pytest.mark.parametrize(
    "module",
    [
        "ggs",
        "ggs.errors",
        "ggs.launch.environment",
        "ggs.pai.cli.main",
        "ggs.pai.validate",
        "ggs.cli.plan",
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

"""README and docs: links lead somewhere, Python runs, commands exist with their options, examples train."""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch import nn
from torch.distributed.run import get_args_parser

import ggs
from ggs.cli import main as cli
from ggs.launch import script
from ggs.pai.cli import main as pai_cli
from ggs.train import arguments
from ggs.train.config import TrainConfig
from ggs.train.dry_run import describe, dry_run

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("ggs", "pai", "python", "torchrun", "make", "docker", "pip")
"""What a line of an indented block begins with if it is a command."""
NOT_OURS = (
    "docker",
    "jq",
    "tensorboard",
    "pip",
    "git",
    "cd",
    ".",
    "nvidia-smi",
    "rocm-smi",
    "curl",
    "npx",
)
"""Programs whose options are not checked here."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


pages = pytest.mark.parametrize("page", PAGES, ids=name)


def blocks(page: Path, language: str) -> Iterator[str]:
    """The fenced blocks of a language."""
    fence = rf"^( *)```{language}\n(.*?)^\1```$"
    for _, body in re.findall(fence, page.read_text(), re.MULTILINE | re.DOTALL):
        yield textwrap.dedent(body)


def commands(page: Path) -> list[list[str]]:
    """The words of every command in shell blocks and in indented ones."""
    lines = "".join(blocks(page, "sh"))
    indented = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    begin = rf"(?:\.venv/bin/)?(?:{'|'.join(PROGRAMS)}) "
    found = re.findall(rf"^    (?={begin})((?:.*\\\n)*.*)$", indented, re.MULTILINE)
    text = re.sub(r"\\\n", " ", "\n".join([lines, *found]))
    parts = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [part for words in parts for part in _simple(words)]


def _simple(words: list[str]) -> Iterator[list[str]]:
    """The commands of a pipe; variables before a command are left out."""
    part: list[str] = []
    for word in [*words, "|"]:
        if word in ("|", "&&", ";"):
            if part:
                yield part
            part = []
        elif part or not re.fullmatch(r"\w+=.*", word):
            part.append(word)


@pages
def test_every_link_leads_somewhere(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert dead == []


def anchors(page: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


@pages
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    model = nn.Linear(4, 2)
    space: dict[str, Any] = {"ggs": ggs, "torch": torch, "model": model,
                             "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}  # fmt: skip
    for body in blocks(page, "python"):
        file = re.match(r"# (\w+\.py)\n", body)
        if file:
            (tmp_path / file[1]).write_text(body)
        exec(compile(body, name(page), "exec"), space)
    sys.modules.pop("mymodels", None)


def test_the_readmes_loop_is_python() -> None:
    (body,) = blocks(ROOT / "README.md", "diff")
    for sign in "+-":
        kept = [line[1:] for line in body.splitlines() if line[:1] in (" ", sign) or not line]
        compile("\n".join(kept), "README.md", "exec")


@pages
def test_commands_exist_with_their_options(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for words in commands(page):
        try:
            check(words)
        except (Exception, SystemExit) as error:
            pytest.fail(f"{shlex.join(words)}: {error!r}")


def check(words: Sequence[str]) -> None:
    """Raise unless the command and its options exist."""
    program, rest = Path(words[0]).name, list(words[1:])
    if program == "ggs" and rest[:1] == ["train"]:
        check_training(rest[1:])
    elif program == "ggs":
        check_typer(cli.app, rest)
    elif program == "pai" and rest[:1] not in (["subj"], ["--help"]):
        check_typer(pai_cli.app, rest)
    elif program in ("python", "python3"):
        check_script(rest)
    elif program == "torchrun":
        parsed = get_args_parser().parse_args(rest)
        check_script([parsed.training_script, *parsed.training_script_args])
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text()
        for word in rest:
            target = rf"^{word.split('=')[0]} \?=" if "=" in word else rf"^{word}:"
            assert re.search(target, makefile, re.MULTILINE), f"the Makefile has no {word}"
    elif program == "pai":
        assert rest[0] in ("subj", "--help")
    elif program.endswith(".sh"):  # a shell's start of the program beside it
        assert (ROOT / words[0]).is_file(), f"there is no {words[0]}"
        check_script([f"{words[0].removesuffix('.sh')}.py", *rest])
    else:
        assert words[0] in NOT_OURS, f"{words[0]} is no command that these pages may use"


def check_training(argv: Sequence[str]) -> None:
    if "--help" not in argv:
        arguments.parse(TrainConfig, argv, "ggs train", "")


def check_typer(app: typer.Typer, argv: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and argv and not argv[0].startswith("-"):
        word = argv.pop(0)
        assert word in command.commands, f"there is no command {word}"
        command = command.commands[word]
    if "--help" not in argv:
        command.make_context(word, argv)


def check_script(argv: Sequence[str]) -> None:
    if argv[0] in ("-m", "-c"):
        return
    path = ROOT / argv[0]
    assert path.is_file(), f"there is no {argv[0]}"
    if path.name == "entrypoint.py":
        own = script.split(argv[1:])
        if own is None:
            check_training(argv[1:])
        else:
            check_script([own[1], *own[2]])
        return
    text = path.read_text()
    for flag in argv[1:]:
        if flag.startswith("--"):
            assert f'"{flag.split("=")[0]}"' in text, f"{argv[0]} has no {flag}"


def test_mistakes_in_commands_are_found() -> None:
    """The checks above can fail."""
    for line in (
        "ggs train --densty 0.1",
        "ggs rport runs",
        "ggs report --output x runs",
        "pai job submitt x",
        "pai job validate --no-such-option pai_jobs/smoke.yaml",
        "make everything",
        "make run NOTHING=1",
        "python examples/missing.py",
        "python entrypoint.py --script examples/plain_loop.py --no-such-option 1",
        "torchrun --nproc-per-node 2 examples/plain_loop.py --no-such-option",
        "gss train",
    ):
        with pytest.raises((Exception, SystemExit)):
            check(shlex.split(line))
    text = "(x)[no](nowhere.md)"
    assert re.findall(r"\]\(([^)\s]+)\)", text) == ["nowhere.md"]


def runnable() -> list[list[str]]:
    """The commands on all pages that need neither cluster nor data and are quick."""
    found = []
    for page in PAGES:
        for words in commands(page):
            words = [Path(words[0]).name, *words[1:]]
            validates = words[:3] == ["pai", "job", "validate"] and (ROOT / words[-1]).is_file()
            plans = words[:2] in (["ggs", "plan"], ["ggs", "env"])
            dry = words[:2] == ["ggs", "train"] and "--dry-run" in words
            with_data = {"cifar10", "imagefolder", "mnist"} & set(words)
            if validates or plans or (dry and not with_data):
                found.append(words)
    return [list(words) for words in dict.fromkeys(map(tuple, found))]


@pytest.mark.parametrize("words", runnable(), ids=shlex.join)
def test_quick_commands_run(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(tmp_path)
    for body in blocks(ROOT / "docs/your-own-model.md", "python"):
        if body.startswith("# mymodels.py"):
            (tmp_path / "mymodels.py").write_text(body)
    app = cli.app if words[0] == "ggs" else pai_cli.app
    with pytest.raises(SystemExit) as end:
        app(words[1:])
    assert end.value.code in (0, None)
    assert capsys.readouterr().out.strip()
    sys.modules.pop("mymodels", None)


def test_the_quickstart_shows_what_a_dry_run_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = ROOT / "docs/quickstart.md"
    (words,) = [words for words in commands(page) if "--dry-run" in words]
    (shown,) = blocks(page, "text")
    config = arguments.parse(TrainConfig, [*words[2:], "--device", "cpu"], "ggs train", "")
    assert (
        textwrap.dedent(shown) in textwrap.dedent(describe(dry_run(config)).split("\n\n")[1]) + "\n"
    )


def test_no_page_is_forgotten() -> None:
    """Every page can be reached from the README."""
    reached, new = set(), {ROOT / "README.md"}
    while new:
        page = new.pop()
        reached.add(page)
        for target in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text()):
            file = (page.parent / target).resolve()
            if file.is_file() and file not in reached:
                new.add(file)
    assert [name(page) for page in PAGES if page not in reached] == []


@pytest.mark.parametrize(
    ("example", "options", "words"),
    [
        pytest.param(
            "plain_loop.py", ["--epochs", "1"], r"epoch 1: top-1 \d", marks=pytest.mark.full
        ),
        ("language_model.py", ["--steps", "3"], r"step 3: [567]\.\d+ bits"),
    ],
)
def test_examples_train_on_two_workers(example: str, options: list[str], words: str) -> None:
    command = [sys.executable, "entrypoint.py", "--workers", "2", "--script", f"examples/{example}"]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(words, done.stdout), done.stdout

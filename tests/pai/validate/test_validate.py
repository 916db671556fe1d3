import copy
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from ggs.pai.job.document import MAX_BYTES, DocumentError, load, read_text, walk
from ggs.pai.validate import RULES, report, validate
from ggs.pai.validate.behaviour import BEHAVIOURS
from ggs.pai.validate.catalogue import markdown
from ggs.pai.validate.finding import Finding, Target
from ggs.pai.validate.run_rules import refusal

CORPUS = sorted((Path(__file__).parents[1] / "jobs").glob("*.yaml"))
CLEAN = next(file for file in CORPUS if file.stem == "clean")
_EXPECT = re.compile(r"# expect: (\d+) (error|warning) (\S+) (\S+)")


def _expected(text: str) -> list[tuple[int, str, str, str]]:
    return [
        (int(line), severity, rule, "" if path == "-" else path)
        for line, severity, rule, path in _EXPECT.findall(text)
    ]


def _found(findings: list[Finding]) -> list[tuple[int, str, str, str]]:
    return [(item.line, item.severity, item.rule, item.path) for item in findings]


def test_the_corpus_is_large_and_touches_every_rule_of_a_readable_file() -> None:
    dangerous = [file for file in CORPUS if _expected(file.read_text())]
    assert len(dangerous) >= 60
    seen = {rule for file in dangerous for _, _, rule, _ in _expected(file.read_text())}
    assert set(RULES) - seen == {"file-too-large", "yaml-too-complex"}


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.stem)
def test_every_problem_is_found_in_its_place_and_nothing_else(file: Path) -> None:
    text = file.read_text()
    assert text.startswith("# expect: ")
    findings = validate(text)
    assert _found(findings) == _expected(text)
    for item in findings:
        assert item.message
        assert item.consequence
        assert item.fix
        assert "\n" not in item.message + item.consequence + item.fix


@pytest.mark.parametrize(
    ("name", "target", "rules"),
    [
        ("job-type-of-ltp", "openpai", {"job-type"}),
        ("job-type-of-ltp", "ltp", set()),
        ("job-type-unknown", "ltp", {"job-type-value"}),
        ("image-docker-hub", "openpai", set()),
        ("hived-priority-prod", "openpai", set()),
        ("hived-priority-prod", "ltp", {"hived-prod"}),
        ("command-backslash", "openpai", {"command-lines"}),
    ],
)
def test_the_target_chooses_the_rules(name: str, target: Target, rules: set[str]) -> None:
    text = next(file for file in CORPUS if file.stem == name).read_text()
    assert {item.rule for item in validate(text, target=target)} == rules


def test_no_value_in_any_place_breaks_a_rule() -> None:
    job = yaml.safe_load(CLEAN.read_text())
    job["deployments"] = [{"name": "a", "taskRoles": {"worker": {"preCommands": ["b"]}}}]
    job["defaults"] = {"deployment": "a", "virtualCluster": "default"}
    job["secrets"] = {"key": "value"}
    job["prerequisites"][0]["auth"] = {"username": "u", "password": "p"}
    job["extras"]["hivedScheduler"] = {"taskRoles": {"worker": {"affinityGroupName": "g"}}}
    job["extras"]["com.microsoft.pai.runtimeplugin"] = [
        {"plugin": "ssh", "parameters": {"jobssh": False}, "taskroles": ["worker"]},
        {"plugin": "tensorboard", "parameters": {"port": 1, "logdir": {"a": "b"}}},
    ]
    values: tuple[object, ...] = (None, [], {}, "<%", 0, [[]], [{}], {"name": {}})
    tried = 0
    for path, _ in walk(job):
        for value in values:
            broken = copy.deepcopy(job)
            parent = broken
            for step in path[:-1]:
                parent = parent[step]
            if path:
                parent[path[-1]] = copy.deepcopy(value)
            text = json.dumps(broken if path else value, indent=1)
            lines = text.count("\n") + 1
            assert all(1 <= item.line <= lines for item in validate(text))
            tried += 1
    assert tried > 300


@pytest.mark.parametrize(
    ("data", "rule", "line"),
    [
        (b"a: 1\n" * (MAX_BYTES // 5 + 1), "file-too-large", 1),
        (b"a:\n" + b"- " * 300 + b"x\n", "yaml-too-complex", 2),
    ],
    ids=["long", "deep"],
)
def test_a_hostile_file_is_refused_with_one_finding(
    tmp_path: Path, data: bytes, rule: str, line: int
) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(data)
    try:
        findings = validate(read_text(file))
    except DocumentError as error:
        findings = [refusal(error)]
    assert [(item.rule, item.line) for item in findings] == [(rule, line)]


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("parameters: {a: [" + "1, " * 30_000 + "1]}\n", set()),
        ("parameters: {a: &a [*a]}\n", {"yaml-aliases"}),
        ("parameters: {a: " + "[" * 190 + "]" * 190 + "}\n", set()),
    ],
    ids=["many values", "alias inside itself", "many levels"],
)
def test_what_the_server_takes_is_no_error_for_its_size(text: str, rules: set[str]) -> None:
    body = CLEAN.read_text().replace("parameters:\n  epochs: 3\n", text)
    body = body.replace(" --epochs <% $parameters.epochs %>", "")
    assert {item.rule for item in validate(body)} == rules


def test_bytes_that_are_not_utf8_matter_only_outside_comments(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes("# für später\n".encode("latin-1") + CLEAN.read_bytes())
    assert validate(load(file)) == []
    file.write_bytes(CLEAN.read_bytes().replace(b"train.py", b"\xfcben.py"))
    assert [(item.line, item.rule) for item in validate(load(file))] == [(21, "yaml-encoding")]


@pytest.mark.parametrize(
    ("piece", "rules"),
    [
        ("<%", {"template-unclosed"}),
        ("<% ", {"template-unclosed"}),
        ("${a", set()),
        ("timeout ", set()),
        ("tcp://", set()),
        ("rdzv_endpoint=", set()),
        ("read -a ", set()),
        ("a=$b ", {"variable-unset"}),
        ("<%a%>", {"template-unknown"}),
    ],
)
def test_a_command_made_to_be_slow_is_answered(piece: str, rules: set[str]) -> None:
    command = piece * (95_000 // len(piece))
    text = CLEAN.read_text().replace("python train.py --epochs <% $parameters.epochs %>", command)
    text = text.replace(command, f"'{command}'")
    assert {item.rule for item in validate(text)} == rules


def test_a_message_is_short_whatever_the_value() -> None:
    text = CLEAN.read_text().replace("name: example", f"name: {'9' * 90_000}")
    assert [len(item.message) for item in validate(text)] == [300]


def test_an_endless_file_is_read_only_as_far_as_the_server_would() -> None:
    with pytest.raises(DocumentError, match=f"longer than {MAX_BYTES} bytes"):
        read_text(Path("/dev/zero"))


def _report(*files: Path, terminal: bool = False) -> tuple[int, str]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=80, soft_wrap=True)
    return report(files, console=console), output.getvalue()


def _corpus(name: str) -> Path:
    return next(file for file in CORPUS if file.stem == name)


def test_the_exit_code_is_that_of_the_worst_file(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    assert _report(CLEAN)[0] == 0
    assert _report(_corpus("no-retry"))[0] == 0
    assert _report(_corpus("no-retry"), _corpus("role-capital"), CLEAN)[0] == 1
    assert _report(missing, _corpus("role-capital"))[0] == 2
    assert f"{missing}: cannot be read: No such file or directory" in _report(missing)[1]


def test_a_pipe_gets_a_line_for_each_finding() -> None:
    file = _corpus("role-capital")
    _, output = _report(file)
    assert output.splitlines() == [
        f"{file}:13: error: taskRoles.Worker: the role name 'Worker' becomes 'worker' on the way "
        f"[role-name]; then: {RULES['role-name'].consequence}; fix: {RULES['role-name'].fix}",
        f"{file}: 1 error",
    ]
    assert _report(CLEAN)[1] == f"{CLEAN}: no problems\n"


def test_a_terminal_gets_a_block_for_each_finding() -> None:
    _, output = _report(_corpus("many-at-once"), terminal=True)
    assert "\x1b[" in output
    assert output.count("Fix: ") == output.count("Then: ") == 7
    assert "6 errors, 1 warning" in output


def test_text_from_the_file_is_never_taken_for_markup(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(CLEAN.read_text().replace("name: example", "name: '[bold]x[/red]'"))
    assert "'[bold]x[/red]' is not allowed" in _report(file)[1]


def test_a_job_file_is_checked_without_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from ggs.pai.validate import report; "
        f"report([Path({str(CLEAN)!r})]); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'docker', 'httpx')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_documents_list_every_check() -> None:
    assert set(BEHAVIOURS) == set(RULES)
    page = Path(__file__).parents[3] / "docs" / "job-file-checks.md"
    assert page.read_text() == markdown(), (
        "python -m ggs.pai.validate.catalogue > docs/job-file-checks.md"
    )

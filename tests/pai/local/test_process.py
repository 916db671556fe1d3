"""Jobs run as processes: retries, the runtime's behaviour, and what is left behind (nothing)."""

import os
import shutil
import signal
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ggs.pai.local import attempt
from ggs.pai.local.display import Display
from ggs.pai.local.task_environment import TaskId
from tests.pai.local.jobs import bash_job, pai, processes_with, run_job

LATER = '[ "$FC_FRAMEWORK_ATTEMPT_ID" = 0 ] || exit 0'


def unmistakable() -> str:
    """Seconds to sleep, of which no other test's sleeps' command lines contain the digits."""
    return f"3456.{uuid.uuid4().int % 10**12:012}"


def sleeping(seconds: str) -> int:
    """How many processes sleep for so long; one that is still to become ``sleep`` does not count."""
    words = b"sleep\0" + seconds.encode() + b"\0"
    found = 0
    for process in processes_with(seconds):
        with suppress(OSError):  # it has ended meanwhile
            found += Path(f"/proc/{process}/cmdline").read_bytes() == words
    return found


def test_tasks_find_each_other(tmp_path: Path) -> None:
    """One task listens at its own address and port, the other sends it a line."""
    listen = (
        "import os, socket; e = os.environ; "
        "s = socket.create_server((e['PAI_CURRENT_CONTAINER_IP'], int(e['PAI_worker_0_sync_PORT'])));"
        "print(s.accept()[0].recv(99).decode(), flush=True)"
    )
    send = (
        "import os, socket, time; e = os.environ\n"
        "for _ in range(2000):\n"
        "    try: s = socket.create_connection((e['PAI_HOST_IP_worker_0'], "
        "int(e['PAI_PORT_LIST_worker_0_sync'])), source_address=(e['PAI_HOST_IP_worker_1'], 0)); break\n"
        "    except ConnectionRefusedError: time.sleep(0.05)\n"
        "s.send(b'hello from ' + s.getsockname()[0].encode())"
    )
    (tmp_path / "0.py").write_text(listen)
    (tmp_path / "1.py").write_text(send)
    resources = {"cpu": 1, "memoryMB": 256, "gpu": 0, "ports": {"sync": 1}}
    job = bash_job(
        f"{sys.executable} {tmp_path}/$PAI_TASK_INDEX.py", role={"resourcePerInstance": resources}
    )
    result = run_job(job, tmp_path / "run", "process")
    assert result.code == 0
    assert result.log(0, "worker", 0) == "hello from 127.0.0.3\n"


@pytest.mark.parametrize(
    ("commands", "retries", "code", "attempts"),
    [
        ([LATER, "exit 3"], 1, 0, 2),
        ([LATER, "exit 3"], 0, 1, 1),
        ([LATER, "exit 132"], 5, 1, 1),
        ([LATER, "kill -9 $$"], 0, 0, 2),
        ([LATER, "no_such_command"], 5, 1, 1),
        ([LATER, "echo 'ImportError: no'; exit 1"], 5, 1, 1),
        (["exit 1"], 2, 1, 3),
    ],
    ids=["exit 3", "no retries", "132", "SIGKILL", "not found", "import error", "used up"],
)
def test_the_reaction_to_a_failure(
    tmp_path: Path, commands: list[str], retries: int, code: int, attempts: int
) -> None:
    result = run_job(bash_job(*commands, retries=retries), tmp_path, "process")
    assert (result.code, result.attempts) == (code, attempts)


def test_the_last_words_of_a_failing_task_are_heard_however_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What passes them on gets no processor for a while; they decide whether there is a retry."""
    slow = tmp_path / "bin" / "cat"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/bash\nsleep 1.5\nexec {shutil.which("cat")} "$@"\n')
    slow.chmod(0o700)
    monkeypatch.setenv("PATH", f"{slow.parent}{os.pathsep}{os.environ['PATH']}")
    job = bash_job("echo 'ImportError: no'; exit 1", instances=1, retries=5)
    result = run_job(job, tmp_path / "run", "process")
    assert (result.code, result.attempts) == (1, 1)
    assert result.log(0, "worker", 0) == "ImportError: no\n"


def test_a_failing_task_does_not_wait_for_what_it_leaves_running(tmp_path: Path) -> None:
    length = unmistakable()
    job = bash_job(f"sleep {length} & echo 'ImportError: no'; exit 1", instances=1)
    assert run_job(job, tmp_path, "process").code == 1
    assert not processes_with(length)


def test_an_endless_retry_ends_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_job(bash_job("exit 143"), tmp_path, "process", max_attempts=3)
    assert (result.code, result.attempts) == (1, 3)
    assert "here it ends after 3 attempts, OpenPAI would go on" in capsys.readouterr().out


def test_a_killed_task_restarts_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    up: set[TaskId] = set()
    show = Display.output

    def record(display: Display, task: TaskId, line: str) -> None:
        show(display, task, line)
        if line == "up":
            up.add(task)

    # By this clock 3 s have passed as soon as both tasks have told their environment, and not before.
    monkeypatch.setattr(Display, "output", record)
    clock = SimpleNamespace(monotonic=lambda: 3.0 if len(up) == 2 else 0.0)
    monkeypatch.setattr(attempt, "time", clock)
    job = bash_job("env", "echo up", LATER, "sleep 1000")
    result = run_job(job, tmp_path, "process", kills=["worker:1@3"])
    assert (result.code, result.attempts) == (0, 2)
    before, after = (result.variables(attempt, "worker", 0) for attempt in (0, 1))
    assert after["FC_FRAMEWORK_ATTEMPT_ID"] == "1"
    assert before["FC_FRAMEWORK_UID"] == after["FC_FRAMEWORK_UID"]
    assert before["PAI_PORT_LIST_worker_1_http"] != after["PAI_PORT_LIST_worker_1_http"]
    assert before["FC_POD_UID"] != after["FC_POD_UID"]
    output = capsys.readouterr().out
    assert "worker:1: exit code 137, SIGKILL: OpenPAI always retries it, uncounted" in output
    assert "job SUCCEEDED after 2 attempts" in output


def test_the_environment_is_a_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAI_TASK_INDEX", "PAI_OF_ANOTHER", "RANK", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("OF_THE_CALLER", "kept")
    result = run_job(bash_job("env"), tmp_path, "process", user="alice")
    found = result.variables(0, "worker", 1)
    assert found["PAI_TASK_INDEX"] == "1"
    assert found["PAI_JOB_NAME"] == "alice~tiny"
    assert found["PAI_WORK_DIR"] == os.getcwd()
    assert found["PAI_HOST_IP_worker_0"] == "127.0.0.2"
    assert found["OF_THE_CALLER"] == "kept"
    assert not {"PAI_OF_ANOTHER", "RANK", "LOCAL_RANK", "MASTER_ADDR"} & found.keys()


def test_the_script_runs_in_one_strict_shell(tmp_path: Path) -> None:
    commands = ("cd /", "  export X=$(pwd)  ", "cat", 'echo "X=$X"', "false | true", "echo no")
    job = bash_job(*commands, instances=1)
    result = run_job(job, tmp_path, "process")
    assert result.code == 1
    assert result.log(0, "worker", 0) == "X=/\n"
    unset = run_job(bash_job("echo $NOT_SET"), tmp_path / "unset", "process")
    assert unset.code == 1


def test_completion_policy_ends_the_others(tmp_path: Path) -> None:
    length = unmistakable()
    job = bash_job(
        f'[ "$PAI_TASK_INDEX" = 0 ] || sleep {length}',
        role={"completion": {"minSucceededInstances": 1}},
    )
    assert run_job(job, tmp_path, "process").code == 0
    assert not processes_with(length)


def test_plugins_and_secrets(tmp_path: Path) -> None:
    job = bash_job(
        "echo user $X '<% $secrets.word %>'".replace("$X", "${X:-unset}"),
        instances=1,
        secrets={"word": "p&w"},
        extras={
            "com.microsoft.pai.runtimeplugin": [
                {"plugin": "cmd", "parameters": {"preCommands": ["export X=1", "echo pre"]}},
                {
                    "plugin": "cmd",
                    "failurePolicy": "ignore",
                    "parameters": {"preCommands": ["false", "echo still"]},
                },
                {"plugin": "cmd", "parameters": {"postCommands": ["echo post 2"]}},
                {"plugin": "cmd", "parameters": {"postCommands": ["echo post 3"]}},
            ]
        },
    )
    result = run_job(job, tmp_path, "process")
    assert result.code == 0
    # Exports of a plugin do not reach the user's script, secrets are HTML-escaped, and post-commands
    # run in the opposite order: all as on OpenPAI.
    assert result.log(0, "worker", 0).splitlines() == [
        "pre",
        "still",
        "user unset p&amp;w",
        "post 3",
        "post 2",
    ]


def test_a_failing_plugin_fails_the_task(tmp_path: Path) -> None:
    plugin = {"plugin": "cmd", "parameters": {"preCommands": ["exit 132"]}}
    job = bash_job(
        "echo user", retries=3, extras={"com.microsoft.pai.runtimeplugin": [plugin]}, instances=1
    )
    result = run_job(job, tmp_path, "process")
    assert (result.code, result.attempts) == (1, 1)
    assert "user" not in result.log(0, "worker", 0)


def test_a_storage_is_a_folder(tmp_path: Path) -> None:
    mine = tmp_path / "my data"
    mine.mkdir()
    job = bash_job(
        "echo $PAI_TASK_INDEX > '/mnt/data'/from-$PAI_TASK_INDEX; echo x > /scratch/x",
        extras={"storages": [{"name": "data"}, {"name": "other", "mountPath": "/scratch"}]},
    )
    result = run_job(job, tmp_path / "run", "process", storages=[f"data={mine}"])
    assert result.code == 0
    assert sorted(path.name for path in mine.iterdir()) == ["from-0", "from-1"]
    assert (tmp_path / "run/storages/other/x").exists()


def test_a_background_process_keeps_the_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = run_job(bash_job("sleep 0.5 & echo done", instances=1), tmp_path / "a", "process")
    assert short.code == 0
    length = unmistakable()
    forever = bash_job(f"setsid sleep {length} >/dev/null 2>&1 & true", instances=1)
    assert run_job(forever, tmp_path / "b", "process", linger_seconds=1).code == 1
    assert "OpenPAI 1.8.1 keeps the task RUNNING until that ends" in capsys.readouterr().err
    assert not processes_with(length)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """Even a task that ignores signals and has left its process group is gone."""
    length = unmistakable()
    job = tmp_path / "job.yaml"
    job.write_text(
        bash_job("trap '' INT TERM HUP", f"setsid sleep {length} & echo up", f"sleep {length}")
    )
    folder = tmp_path / "temporary"
    folder.mkdir()
    arguments = ["--engine", "process", "--folder", str(tmp_path / "run")]
    with pai("job", "run-local", str(job), *arguments, TMPDIR=str(folder)) as process:
        assert process.stdout is not None
        up = 0
        while up < 2:
            assert process.poll() is None
            up += process.stdout.readline().endswith("| up\n")
        deadline = time.monotonic() + 60  # "up" comes a moment before the second sleep of a task
        while sleeping(length) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sleeping(length) == len(processes_with(length)) == 4
        process.send_signal(number)
        rest = process.communicate(timeout=120)[0]
    assert process.returncode == 128 + number
    assert f"{number.name}: the job is stopped" in rest
    assert not processes_with(length)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kills": ["worker:1"]}, "write ROLE:INDEX@SECONDS, for example worker:1@5"),
        ({"kills": ["worker:2@1"]}, "the job has no such task, only worker:0, worker:1"),
        ({"storages": ["data"]}, "write NAME=VALUE"),
        ({"storages": ["data=/"]}, "the job's extras.storages has none"),
        ({"storages": ["data=/no/such/folder"]}, "no folder /no/such/folder"),
        ({"settings": ["epochs"]}, "write NAME=VALUE"),
        ({"settings": ["epochs=1"]}, "the job file has no parameters"),
    ],
)
def test_a_wrong_option(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, list[str]],
    says: str,
) -> None:
    assert run_job(bash_job("true"), tmp_path, "process", **options).code == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (bash_job("true").replace("instances: 2", "instances: many"), "instances"),
        (bash_job("true").replace("dockerImage: image", "dockerImage: other"), "named 'other'"),
        (bash_job("true").replace("gpu: 0", "gpu: 99"), "--gpus 0 runs them on the CPU"),
        (
            bash_job("true", role={"resourcePerInstance": {"cpu": 1, "memoryMB": 1, "gpu": 0,
                                                           "ports": {"http": 0}}}),
            "ports.http: 0: give 1 or more",
        ),
    ],
)  # fmt: skip
def test_a_wrong_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    assert run_job(text, tmp_path, "process").code == 2
    assert says in capsys.readouterr().err


def test_gpus_can_be_taken_away(tmp_path: Path) -> None:
    job = bash_job("env").replace("gpu: 0", "gpu: 8")
    result = run_job(job, tmp_path, "process", gpus=0)
    assert result.code == 0
    found = result.variables(0, "worker", 0)
    assert found["PAI_RESOURCE_worker"] == "0,1,256,0"
    assert found["NVIDIA_VISIBLE_DEVICES"] == "none"


def test_what_openpai_would_refuse_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = bash_job("true").replace("bash-image:1", "bash-image:V1")
    assert run_job(job, tmp_path, "process").code == 0
    assert "the tag 'V1' is refused" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("parameters", "failure"),
    [
        ({"preCommands": ["echo 'a' \"b\""]}, "are not YAML"),
        ({"preCommands": [True]}, "the command True is not text"),
        ({"preCommands": ["a"], "callbacks": []}, "callbacks beside preCommands"),
        ({"preCommands": ["echo <% $parameters.none %>"]}, "KeyError: 'none'"),
    ],
)
def test_where_openpais_init_container_fails_the_job_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], parameters: dict[str, Any], failure: str
) -> None:
    plugin = {"plugin": "cmd", "parameters": parameters}
    extras = {"com.microsoft.pai.runtimeplugin": [plugin]}
    job = bash_job("true", extras=extras, parameters={})
    assert run_job(job, tmp_path, "process").code == 1
    assert failure in capsys.readouterr().err


def test_a_plugins_command_of_several_lines_is_one_line_as_on_openpai(tmp_path: Path) -> None:
    plugin = {"plugin": "cmd", "parameters": {"preCommands": ["echo one\necho two\n"]}}
    job = bash_job("true", extras={"com.microsoft.pai.runtimeplugin": [plugin]}, instances=1)
    result = run_job(job, tmp_path, "process")
    assert result.log(0, "worker", 0).splitlines() == ["onenecho twon"]


def test_the_final_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = bash_job('[ "$PAI_TASK_INDEX" = 1 ] || sleep 99', "exit 5", retries=1)
    assert run_job(job, tmp_path, "process").code == 1
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("│")
    ]
    assert rows == [
        ["worker:0", "2", "-220", "killed, because the attempt was over"],
        [
            "worker:1",
            "2",
            "5 (255)",
            "a failure that OpenPAI does not know: OpenPAI retries it up to jobRetryCount times",
        ],
    ]

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections import deque
from functools import partialmethod
from pathlib import Path

import pytest
import yaml

from ggs import __version__
from ggs.pai.client.logs import FollowLimits
from ggs.pai.client.transport import Limits
from tests.pai import fake_server as fake
from tests.pai.cli.conftest import Pai
from tests.pai.fake_server import PASSWORD, TOKEN, FakePAI, task

# A terminal's programs are not born deaf to Ctrl-C, as those of a script in the background are.
_HEAR = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
MAIN = [sys.executable, "-c", f"{_HEAR}; from ggs.pai.cli.main import main; main()"]


def test_adding_and_listing_clusters(pai: Pai, server: FakePAI, home: Path) -> None:
    code, out, err = pai("cluster", "add", "lab", server.url + "/", stdin=TOKEN + "\n")
    assert (code, out) == (0, "")
    assert f"added lab: alice on {server.url}" in err
    assert "is not encrypted" in err
    (entry,) = yaml.safe_load((home / ".openpai/clusters.yaml").read_text())
    assert (entry["user"], entry["token"]) == ("alice", TOKEN)
    code, out, _ = pai("cluster", "list")
    assert code == 0
    assert out.splitlines()[1].split()[:4] == ["lab", server.url, "alice", "yes"]
    assert pai("cluster", "remove", "lab")[0] == 0
    code, _, err = pai("job", "list")
    assert code == 2
    assert "no cluster is known yet" in err


def test_a_token_that_the_cluster_refuses_is_not_stored(
    pai: Pai, server: FakePAI, home: Path
) -> None:
    code, _, err = pai("cluster", "add", "lab", server.url, "--user", "alice", stdin="bad-token")
    assert code == 3
    assert "does not accept the token" in err
    assert not (home / ".openpai").exists()
    code, _, err = pai("cluster", "add", "lab", server.url, stdin="bad-token")
    assert (code, "does not accept the token" in err) == (3, True)
    code, _, err = pai("cluster", "add", "lab", server.url, stdin="")
    assert (code, "nothing came through the pipe" in err) == (2, True)


def test_logging_in(pai: Pai, openpai: FakePAI, home: Path) -> None:
    login = ("cluster", "add", "lab", openpai.url, "--login", "--user", "alice")
    code, _, err = pai(*login, stdin="wrong-password")
    assert code == 3
    assert "Password is incorrect" in err
    assert pai(*login, stdin=PASSWORD)[0] == 0
    text = (home / ".openpai/clusters.yaml").read_text()
    assert TOKEN in text
    assert PASSWORD not in text


def test_a_password_in_the_sdks_file_logs_in(pai: Pai, openpai: FakePAI, home: Path) -> None:
    (home / ".openpai").mkdir()
    entry = {"cluster_alias": "old", "pai_uri": openpai.url, "user": "alice", "password": PASSWORD}
    (home / ".openpai/clusters.yaml").write_text(yaml.safe_dump([entry]))
    code, _, err = pai("job", "list")
    assert code == 0
    assert "chmod 600" in err
    assert PASSWORD not in err


def test_no_token_at_all(pai: Pai, home: Path) -> None:
    (home / ".openpai").mkdir()
    entry = {"cluster_alias": "old", "pai_uri": "https://h", "user": "alice"}
    (home / ".openpai/clusters.yaml").write_text(yaml.safe_dump([entry]))
    code, _, err = pai("job", "list")
    assert (code, "set PAI_TOKEN" in err) == (2, True)


def test_submitting(pai: Pai, known: FakePAI, file: str) -> None:
    code, out, err = pai("job", "submit", file, "--cluster", "lab", "--set", "epochs=5")
    assert code == 0
    assert out == f"{known.url}/job-detail.html?username=alice&jobName=one\n"
    assert "pai job wait one --cluster lab" in err
    assert "pai job logs one --follow --cluster lab" in err
    sent = known.sent("POST")[0].body.decode()
    assert sent == Path(file).read_text().replace("epochs: 3", "epochs: 5")


def test_a_dry_run_sends_nothing_and_shows_no_secret(
    pai: Pai, known: FakePAI, file: str, tmp_path: Path
) -> None:
    code, out, err = pai("job", "submit", file, "--dry-run", "--name", "other")
    assert code == 0
    assert out == Path(file).read_text().replace("name: one", "name: other")
    assert "nothing was sent" in err
    secret = tmp_path / "secret.yaml"
    secret.write_text(Path(file).read_text() + "secrets:\n  password: hunter2hunter2\n")
    code, out, err = pai("job", "submit", str(secret), "--dry-run")
    assert code == 0
    assert "hunter2" not in out + err
    assert yaml.safe_load(out)["secrets"] == "******"
    assert not known.requests


def test_a_file_with_errors_is_not_sent(pai: Pai, known: FakePAI, file: str) -> None:
    text = Path(file).read_text()
    Path(file).write_text(text.replace("    instances: 2\n", "").replace("type: job", "type: jib"))
    code, _, err = pai("job", "submit", file)
    assert code == 1
    assert f"{file}:4: type" in err
    assert "instances" in err
    for broken in ("a: [", "a: \x07", "\udcff"):
        Path(file).write_bytes(broken.encode("utf-8", "surrogateescape"))
        code, _, err = pai("job", "submit", file)
        assert code == 1
        assert f"error: {file}:" in err
    assert not known.requests


def test_a_setting_that_the_file_has_not(pai: Pai, known: FakePAI, file: str) -> None:
    for setting, words in (("epocs=5", "did you mean epochs"), ("epochs", "write NAME=VALUE")):
        code, _, err = pai("job", "submit", file, "--set", setting)
        assert code == 2
        assert words in err
    code, _, err = pai("job", "submit", file + ".gone")
    assert (code, "No such file" in err) == (2, True)
    assert not known.requests


@pytest.mark.parametrize(
    ("arguments", "passes"),
    [
        (("validate",), 2),
        (("submit", "--dry-run"), 2),
        (("submit", "--dry-run", "--set", "epochs=5", "--set", "rate=0.2", "--name", "two"), 3),
        (("run-local", "--engine", "process"), 3),
        (("run-local", "--engine", "process", "--set", "epochs=5"), 4),
    ],
)
def test_a_file_is_not_parsed_more_often_than_openpai_does(
    pai: Pai, file: str, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], passes: int
) -> None:
    text = Path(file).read_text().replace("  epochs: 3", "  epochs: 3\n  rate: 0.1")
    Path(file).write_text(text)
    reads = []
    start = yaml.reader.Reader.__init__

    def count(reader: yaml.reader.Reader, stream: str) -> None:
        reads.append(stream)
        start(reader, stream)

    # As the server reads it, once more where it is changed, and as the init container does: for the
    # check, and for a run.
    monkeypatch.setattr(yaml.reader.Reader, "__init__", count)
    monkeypatch.chdir(Path(file).parent)
    assert pai("job", *arguments, file)[0] == 0
    assert len(reads) == passes


def test_a_taken_name(pai: Pai, known: FakePAI, file: str) -> None:
    known.add_job("one")
    code, _, err = pai("job", "submit", file)
    assert code == 3
    assert "the name of job 'one' is taken" in err
    assert "free is --name one-2" in err
    assert pai("job", "submit", file, "--name", "one-2")[0] == 0


def test_a_secret_that_the_server_repeats(pai: Pai, known: FakePAI, file: str) -> None:
    with open(file, "a") as opened:
        opened.write("secrets:\n  password: hunter2hunter2\n")
    known.fault("POST", fake.say(500, b'{"message":"cannot parse hunter2hunter2"}'))
    code, out, err = pai("job", "submit", file)
    assert code == 3
    assert "cannot parse ******" in err
    assert "hunter2" not in out + err


def test_listing_jobs(pai: Pai, known: FakePAI) -> None:
    known.add_job("one")
    known.add_job("two", states=deque([{"state": "RUNNING"}]))
    code, out, _ = pai("job", "list")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["NAME", "STATE"],
        ["two", "RUNNING"],
        ["one", "WAITING"],
    ]
    code, out, _ = pai("job", "list", "--state", "running", "--json")
    assert [job["name"] for job in json.loads(out)] == ["two"]


def test_the_status_of_a_job(pai: Pai, known: FakePAI) -> None:
    tasks = [
        task("worker", 0, "SUCCEEDED", containerExitCode=0, containerIp="10.0.0.7"),
        task("worker", 1, "FAILED", containerExitCode=255),
    ]
    state = {"state": "FAILED", "appExitCode": 255, "submissionTime": 1.7e12}
    known.add_job("one", states=deque([state]), tasks={"worker": tasks})
    for name in ("one", "alice~one"):
        code, out, _ = pai("job", "status", name)
        assert code == 0
        lines = out.splitlines()
        assert lines[0] == "one: FAILED, 1 task failed, 1 task succeeded"
        assert lines[1] == "reason: exit code 255"
        assert "jobName=one" in out
        assert lines[-2].split() == ["worker:0", "SUCCEEDED", "0", "10.0.0.7", "-"]
    assert json.loads(pai("job", "status", "one", "--json")[1])["name"] == "one"
    code, _, err = pai("job", "status", "two")
    assert (code, "there is no job 'two' on this cluster" in err) == (3, True)
    for wrong in ("", "~", "alice~", "~one"):
        assert pai("job", "status", wrong)[0] == 2


def test_logs(pai: Pai, known: FakePAI) -> None:
    tasks = [task("worker", index, "RUNNING", "one") for index in (0, 1)]
    known.add_job(
        "one",
        states=deque([{"state": "RUNNING"}] * 2 + [{"state": "SUCCEEDED"}]),
        tasks={"worker": tasks},
        logs={"worker:0": b"zero\n", "worker:1": b"first\nsecond\n"},
    )
    code, out, _ = pai("job", "logs", "one")
    assert code == 0
    assert out == "worker:0 | zero\nworker:1 | first\nworker:1 | second\n"
    assert pai("job", "logs", "one", "--task", "1", "--tail", "1")[1] == "second\n"
    code, out, _ = pai("job", "logs", "one", "--task", "0", "--follow")
    assert (code, out) == (0, "zero\n")
    code, _, err = pai("job", "logs", "one", "--follow", "--attempt", "0")
    assert (code, "leave out --attempt" in err) == (2, True)
    code, _, err = pai("job", "logs", "one", "--attempt", "7")
    assert (code, err) == (3, "error: job 'one' has no attempt 7: the newest is 0\n")
    known.jobs["alice", "one"].logs.clear()
    assert "no output yet" in pai("job", "logs", "one")[2]


def test_following_right_after_a_submission(
    pai: Pai, known: FakePAI, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        FollowLimits, "__init__", partialmethod(FollowLimits.__init__, interval=0.01)
    )
    assert pai("job", "submit", file)[0] == 0
    job = known.jobs["alice", "one"]
    job.tasks = {"worker": [task("worker", 0, "RUNNING", "one")]}
    job.logs = {"worker:0": b"first\n"}
    nothing: dict[str, object] = {"state": "WAITING", "tasks": {}}
    job.states = deque([dict(nothing), dict(nothing), {"state": "RUNNING"}, {"state": "SUCCEEDED"}])
    code, out, err = pai("job", "logs", "one", "--follow")
    assert (code, out, err) == (0, "first\n", "WAITING, no tasks yet: waiting for them\n")
    job.states = deque([{"state": "RUNNING"}])
    code, _, err = pai("job", "logs", "one", "--follow", "--timeout", "0")
    assert (code, "one has not ended after 0 h" in err) == (124, True)
    job.states = deque([dict(nothing)])
    code, out, err = pai("job", "logs", "one")
    assert (code, out, err) == (0, "", "no output yet\n")


@pytest.mark.parametrize(("state", "expected"), [("SUCCEEDED", 0), ("FAILED", 1), ("STOPPED", 5)])
def test_the_exit_code_of_wait(pai: Pai, known: FakePAI, state: str, expected: int) -> None:
    known.add_job("one", states=deque([{"state": "RUNNING"}, {"state": state}]))
    code, out, err = pai("job", "wait", "one", "--interval", "0.1")
    assert (code, out) == (expected, "")
    assert err.splitlines()[0] == "RUNNING"
    assert f"one: {state.lower()}" in err


def test_wait_gives_up(pai: Pai, known: FakePAI) -> None:
    known.add_job("one", states=deque([{"state": "RUNNING"}]))
    code, _, err = pai("job", "wait", "one", "--timeout", "0.0001", "--interval", "0.1")
    assert (code, "one: timed out" in err) == (124, True)
    known.add_job("two")
    code, _, err = pai("job", "wait", "two", "--unchanged", "0.00001", "--interval", "0.1")
    assert (code, "two: stalled" in err) == (6, True)
    assert pai("job", "wait", "three")[0] == 3


def test_stopping_and_the_stored_file(pai: Pai, known: FakePAI, file: str) -> None:
    assert pai("job", "submit", file)[0] == 0
    assert yaml.safe_load(pai("job", "config", "one")[1]) == yaml.safe_load(Path(file).read_text())
    assert pai("job", "stop", "one")[0] == 0
    assert known.jobs["alice", "one"].states[0]["state"] == "STOPPED"


def test_the_exit_code_tells_a_refusal_from_silence(
    pai: Pai, known: FakePAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.fault("GET", fake.say(403, b'{"code":"ForbiddenUserError","message":"no"}'))
    assert pai("job", "list")[0] == 3
    monkeypatch.setattr(Limits, "__init__", partialmethod(Limits.__init__, backoff=0.01))
    known.fault("GET", *[fake.say(500, b'{"message":"database"}')] * 4)
    code, _, err = pai("job", "list")
    assert (code, "the fault is the server's, not yours" in err) == (4, True)
    known.fault("GET", fake.page(200, "Sign in"))
    code, _, err = pai("job", "list")
    assert (code, "a web page titled 'Sign in'" in err) == (4, True)


def test_an_unverified_certificate_is_mentioned_every_time(
    pai: Pai, certificate: Path, home: Path
) -> None:
    with FakePAI(certificate=certificate) as server:
        add = ("cluster", "add", "lab", server.url)
        code, _, err = pai(*add, stdin=TOKEN)
        assert (code, "--ca-bundle" in err) == (4, True)
        code, _, err = pai(*add, "--ca-bundle", str(certificate), stdin=TOKEN)
        assert (code, "warning" in err) == (0, False)
        assert pai("job", "list")[0] == 0
        code, _, err = pai(*add, "--insecure", stdin=TOKEN)
        assert (code, "will not be checked" in err) == (0, True)
        code, _, err = pai("job", "list")
        assert (code, "is not checked: others may read the token" in err) == (0, True)


def test_validating(pai: Pai, file: str) -> None:
    code, out, _ = pai("job", "validate", file)
    assert (code, "no problems" in out) == (0, True)
    Path(file).write_text("type: job")
    assert pai("job", "validate", file)[0] == 1
    assert pai("job", "validate", file + ".gone")[0] == 2


def test_running_here(pai: Pai, file: str, tmp_path: Path) -> None:
    text = Path(file).read_text().replace("instances: 2", "instances: 1")
    Path(file).write_text(text)
    folder = str(tmp_path / "run")
    local = ("job", "run-local", file, "--engine", "process", "--folder", folder)
    code, out, _ = pai(*local, "--set", "epochs=7")
    assert (code, "7" in out) == (0, True)
    Path(file).write_text(text.replace("echo <% $parameters.epochs %>", "exit 132"))
    assert pai(*local)[0] == 1
    assert pai(*local, "--kill", "nonsense")[0] == 2
    assert pai(*local, "--set", "nonsense")[0] == 2
    code, _, err = pai("job", "run-local", file, "--engine", "podman")
    assert (code, err.strip()) == (2, "error: --engine podman: use docker or process")


def test_running_a_file_with_errors_reports_them_as_validating_does(pai: Pai, file: str) -> None:
    Path(file).write_text(Path(file).read_text().replace("cpu: 2", "cpu: lots"))
    code, out, _ = pai("job", "run-local", file, "--engine", "process")
    assert code == 1
    assert "resourcePerInstance.cpu: the text 'lots' has the wrong type" in out
    assert "1 error" in out
    Path(file).write_text("name: {")
    assert pai("job", "run-local", file)[0] == 1
    code, out, _ = pai("job", "run-local", file + ".gone")
    assert (code, "cannot be read: No such file" in out) == (2, True)


def test_the_version(pai: Pai) -> None:
    assert pai("--version") == (0, f"pai of ggs {__version__}\n", "")


@pytest.mark.parametrize(
    "command",
    [
        *("", "job", "cluster", "job submit", "job list", "job status", "job logs", "job wait"),
        *("job stop", "job config", "job validate", "job run-local", "cluster add"),
        *("job show", "job clone", "job ssh", "job attempts", "job events", "job tag", "job untag"),
        *("cluster info", "cluster virtual-clusters", "cluster storages", "cluster skus"),
    ],
)
def test_help(pai: Pai, command: str) -> None:
    code, out, _ = pai(*command.split(), "--help")
    assert code == 0
    assert out.startswith("Usage: pai ")
    assert max(map(len, out.splitlines())) <= 80


def test_help_imports_little() -> None:
    script = (
        "import sys\nsys.argv = ['pai', 'job', '--help']\nfrom ggs.pai.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'numpy', 'httpx', 'docker', 'yaml', 'ggs.pai.job.model')"
        " if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


class Terminal:
    """``pai`` as a process of its own at a terminal."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.handle, inner = pty.openpty()
        self.seen = ""
        environment = {**os.environ, "HOME": str(home), "TERM": "dumb"}
        self.process = subprocess.Popen(
            [*MAIN, *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment,
            start_new_session=True,
        )
        os.close(inner)

    def until(self, words: str | None) -> None:
        """Read until ``words`` have appeared, or to the end."""
        end = time.monotonic() + 120
        while words is None or words not in self.seen:
            assert time.monotonic() < end, self.seen
            if not select.select([self.handle], [], [], 1)[0]:
                continue
            try:
                part = os.read(self.handle, 4096)
            except OSError:  # the other side has closed
                part = b""
            if not part:
                assert words is None, self.seen
                return
            self.seen += part.decode()

    def type(self, text: str) -> None:
        """Press the keys, then Enter."""
        os.write(self.handle, text.encode() + b"\n")

    def finish(self) -> int:
        """The exit code."""
        self.until(None)
        return self.process.wait(10)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self.handle)


def test_a_person_is_asked_for_the_token(home: Path, openpai: FakePAI) -> None:
    with Terminal(home, "cluster", "add", "lab", openpai.url) as terminal:
        terminal.until("Token for lab:")
        command_line = Path(f"/proc/{terminal.process.pid}/cmdline").read_bytes()
        terminal.type(TOKEN)
        assert terminal.finish() == 0
    assert TOKEN not in terminal.seen  # no echo
    assert TOKEN.encode() not in command_line
    assert TOKEN in (home / ".openpai/clusters.yaml").read_text()


def test_a_person_is_offered_a_new_name(home: Path, openpai: FakePAI, pai: Pai, file: str) -> None:
    pai("cluster", "add", "lab", openpai.url, stdin=TOKEN)
    openpai.add_job("one")
    with Terminal(home, "job", "submit", file) as terminal:
        terminal.until("New name [one-2]:")
        terminal.type("not allowed")
        terminal.until("'not allowed' is not allowed")
        terminal.type("")
        assert terminal.finish() == 0
    assert ("alice", "one-2") in openpai.jobs
    assert "jobName=one-2" in terminal.seen


def test_an_interrupt_is_no_traceback(home: Path, openpai: FakePAI, pai: Pai) -> None:
    pai("cluster", "add", "lab", openpai.url, stdin=TOKEN)
    openpai.add_job("one", states=deque([{"state": "RUNNING"}]))
    with Terminal(home, "job", "wait", "one") as terminal:
        terminal.until("RUNNING")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.finish() == 130
    assert "Traceback" not in terminal.seen

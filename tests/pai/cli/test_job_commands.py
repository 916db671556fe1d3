"""What the portal and openpaisdk show of jobs: filters, tasks, ssh, attempts, events, tags, clones."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.pai.cli.conftest import Pai
from tests.pai.conftest import JOB
from tests.pai.fake_server import TOKEN_OF_CAROL, FakePAI, StoredJob, task

SSH = "extras:\n  com.microsoft.pai.runtimeplugin:\n    - plugin: ssh\n"


@pytest.fixture
def job(known: FakePAI) -> StoredJob:
    """Alice's job of two workers, of which one runs and one has failed."""
    tasks = [
        task(
            "worker",
            0,
            "RUNNING",
            "one",
            containerIp="10.0.0.7",
            containerNodeName="node-7",
            containerPorts={"ssh": "22001", "http": "22002", "ggs": "23000,23001"},
            containerGpus=6,
        ),
        task(
            "worker",
            1,
            "FAILED",
            "one",
            containerIp="10.0.0.8",
            containerPorts={"ssh": 22003},
            containerExitCode=137,
            containerExitSpec={
                "phrase": "ContainerSigKillReceived",
                "reason": "killed\nby SIGKILL",
                "solution": ["wait for a retry", {"not": "text"}],
            },
            retries=2,
        ),
    ]
    state = {"state": "RUNNING", "appExitCode": None, "retries": 1}
    stored = known.add_job("one", states=deque([state]), tasks={"worker": tasks}, attempts=2)
    stored.text = JOB.format(name="one").replace("gpu: 0", "gpu: 2") + SSH
    stored.tags = ["best", "paper"]
    return stored


def names(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines()[1:]]


def test_jobs_are_filtered(pai: Pai, known: FakePAI) -> None:
    for name, state, tags, cluster in (
        ("a", "RUNNING", ["best", "x"], "default"),
        ("b", "FAILED", ["x"], "prod"),
        ("zeta", "SUCCEEDED", [], "default"),
    ):
        stored = known.add_job(name, states=deque([{"state": state}]), tags=tags)
        stored.virtual_cluster = cluster
    known.add_job("theirs", user="bob")
    for arguments, expected in {
        (): ["zeta", "b", "a"],
        ("--state", "running", "--state", "FAILED"): ["b", "a"],
        ("--virtual-cluster", "prod", "--virtual-cluster", "none"): ["b"],
        ("--tag", "best"): ["a"],
        ("--tag", "x", "--without-tag", "best"): ["b"],
        ("--keyword", "zet"): ["zeta"],
        ("--limit", "1", "--offset", "1"): ["b"],
        ("--user", "bob"): ["theirs"],
        ("--user", "alice", "--user", "bob", "--limit", "2"): ["theirs", "zeta"],
        ("--everyone", "--limit", "1"): ["theirs"],
    }.items():
        code, out, _ = pai("job", "list", *arguments)
        assert (code, names(out)) == (0, expected), arguments
    assert "USER" in pai("job", "list", "--everyone")[1]
    for arguments, words in {
        ("--state", "DONE"): "use one of WAITING, RUNNING",
        ("--tag", "a,b"): "a text without a comma",
        ("--everyone", "--user", "bob"): "leave out --user",
    }.items():
        code, _, err = pai("job", "list", *arguments)
        assert (code, words in err) == (2, True)


def test_a_job_in_detail(pai: Pai, known: FakePAI, job: StoredJob) -> None:
    code, out, _ = pai("job", "show", "one")
    assert code == 0
    head, first, second = out.split("\n\n")
    assert "one: RUNNING, after 1 retries, 1 task failed, 1 task running" in head
    assert "tags best, paper" in head
    assert first.splitlines() == [
        "worker:0: RUNNING",
        "  host  10.0.0.7 (node-7)",
        "  ports ssh 22001, http 22002, ggs 23000,23001",
        "  gpus  2 (1,2)",
        "  ssh   ssh -p 22001 root@10.0.0.7",
    ]
    assert second.splitlines() == [
        "worker:1: FAILED, after 2 retries",
        "  host  10.0.0.8 (no node yet)",
        "  ports ssh 22003",
        "  gpus  2",
        "  exit  137; ContainerSigKillReceived; killed by SIGKILL; wait for a retry",
    ]
    facts = json.loads(pai("job", "show", "one", "--json")[1])
    assert (facts["user"], facts["state"], facts["attempt"]) == ("alice", "RUNNING", 1)
    assert facts["tasks"][0]["ports"] == {"ssh": [22001], "http": [22002], "ggs": [23000, 23001]}
    assert facts["tasks"][1]["exit_code"] == 137
    assert pai("job", "show", "two")[0] == 3


def test_ssh_commands(pai: Pai, known: FakePAI, job: StoredJob) -> None:
    assert pai("job", "ssh", "one") == (0, "ssh -p 22001 root@10.0.0.7\n", "")
    assert pai("job", "ssh", "one", "--task", "worker:0")[1] == "ssh -p 22001 root@10.0.0.7\n"
    assert json.loads(pai("job", "ssh", "one", "--json")[1]) == {
        "worker:0": "ssh -p 22001 root@10.0.0.7"
    }
    code, _, err = pai("job", "ssh", "one", "--task", "worker:1")
    assert (code, "no task of job 'one' runs" in err) == (2, True)
    code, _, err = pai("job", "ssh", "one", "--task", "worker:7")
    assert (code, "its tasks: worker:0, worker:1" in err) == (2, True)
    job.text = JOB.format(name="one")
    code, out, err = pai("job", "ssh", "one")
    assert (code, out != "", "does not ask for the ssh plugin" in err) == (0, True, True)


def test_an_address_is_no_command(pai: Pai, known: FakePAI, job: StoredJob) -> None:
    job.tasks["worker"][0]["containerIp"] = "10.0.0.7; rm -rf ~"
    assert pai("job", "ssh", "one")[1] == "ssh -p 22001 root@'10.0.0.7; rm -rf ~'\n"


def test_attempts(pai: Pai, known: FakePAI, job: StoredJob) -> None:
    code, out, _ = pai("job", "attempts", "one")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert [row[:4] for row in rows] == [
        ["ATTEMPT", "STATE", "EXIT", "REASON"],
        ["0", "FAILED", "255", "PAIRuntimeUnknownFailed"],
        ["1", "RUNNING", "-", "-"],
    ]
    assert len(json.loads(pai("job", "attempts", "one", "--json")[1])) == 2
    code, _, err = pai("job", "attempts", "two")
    assert (code, "there is no job 'two'" in err) == (3, True)


def test_events(pai: Pai, known: FakePAI, job: StoredJob) -> None:
    event = {
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "0/17 nodes are\navailable",
        "taskroleName": "worker",
        "taskIndex": 1,
        "lastTimestamp": "2026-01-02T03:04:05.000Z",
        "count": 9,
    }
    assert pai("job", "events", "one") == (0, "", "no events\n")
    job.events = [event, event | {"type": "Normal", "reason": "Scheduled", "count": 1}]
    code, out, _ = pai("job", "events", "one")
    assert code == 0
    assert out.splitlines() == [
        "2026-01-02T03:04:05.000Z  worker:1  Warning  "
        "FailedScheduling: 0/17 nodes are available (9 times)",
        "2026-01-02T03:04:05.000Z  worker:1  Normal  Scheduled: 0/17 nodes are available",
    ]
    assert json.loads(pai("job", "events", "one", "--warnings", "--json")[1]) == [event]


def test_tags(pai: Pai, known: FakePAI, job: StoredJob) -> None:
    assert pai("job", "tag", "one", "new", "two words") == (
        0,
        "",
        "tags of one: best, new, paper, two words\n",
    )
    assert json.loads(pai("job", "untag", "one", "best", "--json")[1]) == [
        *("paper", "new", "two words")
    ]
    code, _, err = pai("job", "untag", "one", "best")
    assert (code, "tag 'best' of job 'one'" in err) == (3, True)
    code, _, err = pai("job", "tag", "one", "a,b")
    assert (code, "'a,b' is not a tag" in err) == (2, True)
    known.add_job("theirs", user="bob")
    assert pai("job", "tag", "bob~theirs", "mine")[0] == 3
    assert pai("cluster", "add", "boss", known.url, stdin=TOKEN_OF_CAROL)[0] == 0
    assert pai("job", "tag", "bob~theirs", "seen", "--cluster", "boss")[0] == 0
    assert known.jobs["bob", "theirs"].tags == ["seen"]


def test_several_jobs_are_stopped(pai: Pai, known: FakePAI, job: StoredJob) -> None:
    known.add_job("two")
    code, out, _ = pai("job", "stop", "one", "two", "--json")
    assert code == 0
    assert [item["name"] for item in json.loads(out)] == ["one", "two"]
    assert {item.states[0]["state"] for item in known.jobs.values()} == {"STOPPED"}


def test_a_clone_differs_only_as_asked(pai: Pai, known: FakePAI, file: str) -> None:
    assert pai("job", "submit", file)[0] == 0
    code, out, err = pai("job", "clone", "one", "--set", "epochs=9")
    assert (code, "job 'one-2' is accepted" in err) == (0, True)
    assert out.endswith("username=alice&jobName=one-2\n")
    first, second = (yaml.safe_load(known.jobs["alice", name].text) for name in ("one", "one-2"))
    assert second == first | {"name": "one-2", "parameters": {"epochs": 9}}
    code, out, _ = pai("job", "clone", "one-2", "--name", "three", "--json")
    assert (code, json.loads(out)["name"]) == (0, "three")
    code, _, err = pai("job", "clone", "one", "--set", "epocs=9")
    assert (code, "did you mean epochs" in err) == (2, True)
    assert pai("job", "clone", "nothing")[0] == 3
    sent = len(known.sent("POST"))
    code, out, err = pai("job", "clone", "one", "--dry-run", "--name", "four")
    assert (code, yaml.safe_load(out)["name"]) == (0, "four")
    assert "nothing was sent" in err
    assert len(known.sent("POST")) == sent


def test_a_clone_of_somebody_elses_job_is_mine(pai: Pai, openpai: FakePAI) -> None:
    assert pai("cluster", "add", "lab", openpai.url, stdin=TOKEN_OF_CAROL)[0] == 0
    openpai.add_job("one", user="bob").text = JOB.format(name="one")
    assert pai("job", "clone", "bob~one")[0] == 0
    assert ("carol", "one-2") in openpai.jobs


def test_a_clone_needs_the_secrets_that_openpai_masks(
    pai: Pai, known: FakePAI, file: str, tmp_path: Path
) -> None:
    with open(file, "a") as opened:
        opened.write("secrets:\n  password: hunter2hunter2\n")
    assert pai("job", "submit", file)[0] == 0
    code, _, err = pai("job", "clone", "one")
    assert (code, "give them with --secrets FILE" in err) == (2, True)
    secrets = tmp_path / "secrets.yaml"
    secrets.write_text("password: hunter3hunter3\n")
    code, out, err = pai("job", "clone", "one", "--secrets", str(secrets), "--dry-run")
    assert (code, yaml.safe_load(out)["secrets"]) == (0, "******")
    assert "hunter3" not in out + err
    assert pai("job", "clone", "one", "--secrets", str(secrets))[0] == 0
    sent = yaml.safe_load(known.jobs["alice", "one-2"].text)
    assert sent["secrets"] == {"password": "hunter3hunter3"}
    for text, words in (("[1]", "give a mapping"), ("{", "this is not YAML")):
        secrets.write_text(text)
        code, _, err = pai("job", "clone", "one", "--secrets", str(secrets))
        assert (code, words in err) == (2, True)
    code, _, err = pai("job", "clone", "one", "--secrets", str(tmp_path / "gone"))
    assert (code, "No such file" in err) == (2, True)


def test_a_clone_is_checked(pai: Pai, known: FakePAI) -> None:
    text = JOB.format(name="one").replace("instances: 2", "instances: 0")
    known.add_job("one").text = text
    code, _, err = pai("job", "clone", "one")
    assert (code, "error: job 'one':" in err, "instances" in err) == (1, True, True)
    assert not known.sent("POST")


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "FILE", "--name", "new"),
        ("submit", "FILE", "--dry-run"),
        ("validate", "FILE"),
        ("clone", "one"),
        ("list",),
        ("status", "one"),
        ("show", "one"),
        ("config", "one"),
        ("ssh", "one"),
        ("attempts", "one"),
        ("events", "one"),
        ("wait", "one", "--timeout", "0"),
        ("stop", "one"),
        ("tag", "one", "x"),
        ("untag", "one", "best"),
    ],
)
def test_every_command_has_json(
    pai: Pai, known: FakePAI, job: StoredJob, file: str, arguments: tuple[str, ...]
) -> None:
    code, out, _ = pai("job", *(file if word == "FILE" else word for word in arguments), "--json")
    assert code == (124 if arguments[0] == "wait" else 0)
    json.loads(out)


def test_findings_as_json(pai: Pai, file: str) -> None:
    Path(file).write_text(Path(file).read_text().replace("cpu: 2", "cpu: lots"))
    code, out, _ = pai("job", "validate", file, file + ".gone", "--json")
    wrong, gone = json.loads(out)
    assert (code, gone) == (2, {"file": file + ".gone", "unreadable": "No such file or directory"})
    assert any(finding["severity"] == "error" for finding in wrong["findings"])
    Path(file).write_text("a: [")
    code, out, _ = pai("job", "validate", file, "--json")
    assert (code, json.loads(out)[0]["findings"][0]["severity"]) == (1, "error")


def test_a_local_run_as_json(pai: Pai, file: str, tmp_path: Path) -> None:
    local = ("job", "run-local", file, "--engine", "process", "--folder", str(tmp_path / "run"))
    code, out, err = pai(*local, "--json", "--set", "epochs=7")
    assert (code, json.loads(out)) == (
        0,
        {"name": "one", "outcome": "SUCCEEDED", "exit_code": 0},
    )
    assert "job SUCCEEDED" in err


def test_logs_as_json(pai: Pai, known: FakePAI, job: StoredJob) -> None:
    job.logs = {"worker:0": b"a | b\n\xff\nend"}
    code, out, _ = pai("job", "logs", "one", "--json", "--task", "0")
    lines: list[Any] = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert lines == [{"task": "worker:0", "line": text} for text in ("a | b", "�", "end")]

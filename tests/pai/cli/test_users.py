"""Two users on one machine cannot act for each other: the user belongs to the token."""

from collections import deque
from pathlib import Path

import pytest
import yaml

from tests.pai.cli.conftest import Pai
from tests.pai.fake_server import PASSWORD, TOKEN, TOKEN_OF_BOB, TOKEN_OF_CAROL, FakePAI


def entry(home: Path, **fields: object) -> None:
    """The only cluster that this machine's user has, written by hand or by ``opai``."""
    path = home / ".openpai" / "clusters.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump([{"cluster_alias": "lab", "user": "alice", **fields}]))
    path.chmod(0o600)


COMMANDS = {
    "submit": ("submit", "FILE"),
    "list": ("list",),
    "status": ("status", "smoke"),
    "logs": ("logs", "smoke"),
    "wait": ("wait", "smoke"),
    "stop": ("stop", "smoke"),
    "stop by full name": ("stop", "alice~smoke"),
    "config": ("config", "smoke"),
}


@pytest.mark.parametrize("token", [TOKEN_OF_BOB, TOKEN_OF_CAROL, "token-of-bob"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_token_of_another_user_is_refused(
    pai: Pai,
    known: FakePAI,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    token: str,
) -> None:
    job = known.add_job("smoke", states=deque([{"state": "RUNNING"}]))
    monkeypatch.setenv("PAI_TOKEN", token)
    arguments = [file if word == "FILE" else word for word in COMMANDS[command]]
    code, out, err = pai("job", *arguments)
    other = "carol" if token == TOKEN_OF_CAROL else "bob"
    assert (code, out) == (2, "")
    assert err.startswith(
        f"error: PAI_TOKEN belongs to '{other}', but 'lab' is the cluster of 'alice'"
    )
    assert "pai cluster add" in err
    assert job.states[0]["state"] == "RUNNING"
    assert list(known.jobs) == [("alice", "smoke")]
    assert all(request.path.endswith("/tokens/check") for request in known.requests)


def test_a_token_of_the_same_user_comes_before_the_stored_one(
    pai: Pai, known: FakePAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    known.users["another-of-alice"] = "alice"  # it does not say whose it is: the server is asked
    monkeypatch.setenv("PAI_TOKEN", "another-of-alice")
    assert pai("job", "list")[0] == 0
    sent = [
        (item.path.rpartition("/")[2][:5], item.headers["authorization"]) for item in known.requests
    ]
    assert sent == [("check", "Bearer another-of-alice"), ("jobs?", "Bearer another-of-alice")]
    monkeypatch.setenv("PAI_TOKEN", "expired-token-x")
    code, _, err = pai("job", "list")
    assert (code, "does not accept the token" in err) == (3, True)


def test_each_user_has_an_alias(
    pai: Pai, known: FakePAI, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ("cluster", "add", "lab-bob", known.url)
    assert pai(*add, stdin=TOKEN_OF_BOB)[0] == 0
    monkeypatch.setenv("PAI_TOKEN", TOKEN_OF_BOB)
    code, out, _ = pai("job", "submit", file, "--cluster", "lab-bob")
    assert (code, "username=bob&jobName=one" in out) == (0, True)
    assert list(known.jobs) == [("bob", "one")]
    assert pai("job", "stop", "one", "--cluster", "lab-bob")[0] == 0
    assert pai("job", "stop", "one", "--cluster", "lab")[0] == 2


def test_an_administrator_names_whose_job_is_meant(pai: Pai, known: FakePAI) -> None:
    for user in ("alice", "carol"):
        known.add_job("smoke", user, states=deque([{"state": "RUNNING"}]))
    assert pai("cluster", "add", "boss", known.url, stdin=TOKEN_OF_CAROL)[0] == 0
    assert pai("job", "stop", "smoke", "--cluster", "boss")[0] == 0
    states = {user: job.states[0]["state"] for (user, _), job in known.jobs.items()}
    assert states == {"alice": "RUNNING", "carol": "STOPPED"}
    assert pai("job", "stop", "alice~smoke", "--cluster", "boss")[0] == 0
    assert known.jobs["alice", "smoke"].states[0]["state"] == "STOPPED"


def test_a_stored_token_of_another_user_is_refused(pai: Pai, server: FakePAI, home: Path) -> None:
    entry(home, pai_uri=server.url, token=TOKEN_OF_BOB)
    code, _, err = pai("job", "list")
    assert code == 2
    assert "the token stored for 'lab' belongs to 'bob', but 'lab' is the cluster of 'alice'" in err
    assert not server.requests


def test_a_login_as_another_user_is_refused(pai: Pai, openpai: FakePAI, home: Path) -> None:
    openpai.names_of_logins["alias-of-alice"] = "alice"
    entry(home, pai_uri=openpai.url, user="alias-of-alice", password=PASSWORD)
    code, _, err = pai("job", "list")
    assert (code, "the login belongs to 'alice'" in err) == (2, True)
    assert not openpai.sent("GET")


def test_a_cluster_is_added_for_the_tokens_user(pai: Pai, server: FakePAI, home: Path) -> None:
    add = ("cluster", "add", "lab", server.url)
    code, _, err = pai(*add, "--user", "bob", stdin=TOKEN)
    assert (code, "the token belongs to 'alice', not to 'bob'" in err) == (2, True)
    assert not (home / ".openpai").exists()
    code, _, err = pai(*add, stdin="token-of-bob")
    assert (code, "added lab: bob on" in err) == (0, True)
    code, _, err = pai(*add, "--no-check", stdin="token-of-bob")
    assert (code, "give --user" in err) == (2, True)

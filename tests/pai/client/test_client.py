import itertools
import json
import logging
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpcore
import pytest
from httpcore._backends.sync import SyncStream
from hypothesis import given
from hypothesis import strategies as st

from ggs.errors import ConfigurationError, PAIError, ServerRefusedError, UnreachableError
from ggs.pai.client import status, transport
from ggs.pai.client.clusters import Cluster
from ggs.pai.client.job_filter import JobFilter
from ggs.pai.client.responses import Response, complaints, refusal
from ggs.pai.client.rest import Client
from ggs.pai.client.transport import Limits
from tests.pai import fake_server as fake
from tests.pai.conftest import JOB, QUICK
from tests.pai.fake_server import LOG_TOKEN, PASSWORD, TOKEN, FakePAI

TEXT = JOB.format(name="one")


def connect(url: str, token: str | None = TOKEN, limits: Limits = QUICK, **fields: Any) -> Client:
    return Client(Cluster("test", url, "alice", **fields), token, limits)


def one_line(error: pytest.ExceptionInfo[PAIError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 1000
    assert TOKEN not in text
    assert TOKEN not in repr(error.value)
    return text


def test_a_job_is_submitted_as_it_stands(server: FakePAI, client: Client) -> None:
    assert client.submit("one", TEXT) == "accepted"
    (request,) = server.sent("POST")
    assert request.body.decode() == TEXT
    assert request.headers["content-type"] == "text/yaml"
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert client.job("one")["jobStatus"]["state"] == "WAITING"
    assert client.config("one")["parameters"] == {"epochs": 3}


def test_jobs_are_listed_by_user_newest_first(server: FakePAI, client: Client) -> None:
    for name in ("old", "new"):
        server.add_job(name)
    server.add_job("foreign", user="bob")
    assert [job["name"] for job in client.jobs()] == ["new", "old"]
    assert [job["name"] for job in client.jobs(limit=1)] == ["new"]
    assert [job["name"] for job in client.jobs(JobFilter(users=["bob"]))] == ["foreign"]
    assert client.jobs(JobFilter(states=["RUNNING"])) == []
    assert all("username=" in request.path for request in server.sent("GET"))


def test_a_job_is_stopped(server: FakePAI, client: Client) -> None:
    server.add_job("one")
    client.stop("one")
    assert json.loads(server.sent("PUT")[0].body) == {"value": "STOP"}
    assert client.job("one")["jobStatus"]["state"] == "STOPPED"


def test_stored_files_have_their_secrets_masked(server: FakePAI, client: Client) -> None:
    client.submit("one", TEXT + "secrets:\n  password: hunter2hunter2\n")
    assert client.config("one")["secrets"] == "******"


@pytest.mark.parametrize("name", ["one", "a b/../c?d#e", "ä%2e"])
def test_a_missing_job_is_told_on_both_servers(client: Client, name: str) -> None:
    with pytest.raises(ServerRefusedError) as error:
        client.job(name)
    assert error.value.code == "NoJobError"
    assert f"there is no job {name!r} on this cluster" in one_line(error)
    assert not client.exists(name)


def test_ltp_is_asked_twice_before_a_job_counts_as_missing() -> None:
    with (
        FakePAI("ltp") as server,
        connect(server.url) as client,
    ):
        server.add_job("one")
        body = b'{"code":"UnknownError","message":"Failed to retrieve job alice~one."}'
        server.fault("GET", fake.say(500, body))
        assert client.exists("one")
        assert client.submit("two", JOB.format(name="two")) == "accepted"


def test_other_peoples_jobs(server: FakePAI, client: Client) -> None:
    server.add_job("theirs", user="bob")
    with pytest.raises(ServerRefusedError) as error:
        client.stop("theirs", "bob")
    assert error.value.status == 403
    assert "OpenPAI forbids this for job 'theirs'" in one_line(error)


def test_a_password_gives_a_token(openpai: FakePAI) -> None:
    with connect(openpai.url, None) as client:
        with pytest.raises(ServerRefusedError, match="Password is incorrect") as error:
            client.login("wrong-password")
        assert "wrong-password" not in str(error.value)
        assert client.login(PASSWORD) == TOKEN
        assert client.jobs() == []


def test_a_central_login_takes_no_password() -> None:
    words = "copy a token from the portal's profile page"
    with FakePAI("ltp") as server, connect(server.url, None) as client:
        with pytest.raises(ServerRefusedError, match=words) as error:
            client.login(PASSWORD)
        assert PASSWORD not in str(error.value)


# What the server says no to: the file, the status, and words of the sentence.
REFUSED = {
    "unknown key": (TEXT + "hivedScheduler: {}\n", 400, "'hivedScheduler' is unknown"),
    "missing key": (TEXT.replace("type: job\n", ""), 400, "have required property 'type'"),
    "role without image": (
        TEXT.replace("    dockerImage: image\n", ""),
        400,
        "taskRoles.worker",
    ),
    "virtual cluster": (
        TEXT + "defaults: {virtualCluster: prod}\n",
        403,
        "alice is not allowed to do operation in prod",
    ),
    "storage": (TEXT + "extras: {storages: [{name: mine}]}\n", 404, "Storage mine is not found"),
    "no instances": (TEXT.replace("    instances: 2\n", ""), 500, "a task role has no 'instances'"),
    "bad YAML": (TEXT + "a: b: c\n", 500, "cannot read the YAML of job 'one'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_become_one_sentence(server: FakePAI, client: Client, case: str) -> None:
    text, status_code, words = REFUSED[case]
    with pytest.raises(ServerRefusedError) as error:
        client.submit("one", text)
    assert error.value.status == status_code
    assert words in one_line(error)
    assert len(server.sent("POST")) == 1  # a refusal is not tried again
    assert not server.jobs


def test_the_schemas_complaints_are_listed(client: Client) -> None:
    text = TEXT.replace("type: job\n", "jobs: 1\nkind: 2\n")
    with pytest.raises(ServerRefusedError) as error:
        client.submit("one", text)
    said = one_line(error)
    for words in ("'jobs' is unknown", "'kind' is unknown", "required property 'type'"):
        assert words in said
    assert "{" not in said  # no raw JSON


def test_an_image_that_ltp_forbids() -> None:
    with (
        FakePAI("ltp") as server,
        connect(server.url) as client,
    ):
        text = TEXT.replace("registry.example.org/", "docker.io/")
        with pytest.raises(ServerRefusedError, match=r"400 InvalidImageError.*is not allowed"):
            client.submit("one", text)


def test_a_taken_name_and_a_free_one(server: FakePAI, client: Client) -> None:
    for name in ("one", "one-2", "one-10", "one-3x"):
        server.add_job(name)
    server.add_job("one-3", user="bob")  # names are unique per user only
    with pytest.raises(ServerRefusedError, match="the name of job 'one' is taken") as error:
        client.submit("one", TEXT)
    assert error.value.code == "ConflictJobError"
    assert not server.sent("POST")
    assert client.free_name("one") == "one-3"
    assert client.free_name("one-2") == "one-3"


def test_a_name_taken_in_between(server: FakePAI, client: Client) -> None:
    conflict = b'{"code":"ConflictJobError","message":"Job alice~one already exists."}'
    server.fault("POST", fake.say(409, conflict))
    with pytest.raises(ServerRefusedError) as error:
        client.submit("one", TEXT)
    assert error.value.code == "ConflictJobError"


def test_too_large_a_file_is_not_sent(server: FakePAI, client: Client) -> None:
    with pytest.raises(ConfigurationError, match="OpenPAI accepts 102400"):
        client.submit("one", TEXT + "#" * 102400)
    assert not server.requests
    server.fault("POST", fake.say(413, b'{"message":"request entity too large"}'))
    with pytest.raises(ServerRefusedError, match="larger than OpenPAI accepts"):
        client.submit("one", TEXT)


def test_a_token_that_is_not_accepted(server: FakePAI) -> None:
    with connect(server.url, "expired-token-x") as client:
        with pytest.raises(ServerRefusedError, match="does not accept the token") as error:
            client.jobs()
        assert error.value.status == 401
        assert "expired-token-x" not in str(error.value) + repr(client)


@pytest.mark.parametrize("value", ["0.01", lambda: formatdate(time.time() - 5, usegmt=True), "x"])
def test_reading_waits_as_long_as_the_rate_limit_says(
    server: FakePAI, client: Client, value: str | Callable[[], str]
) -> None:
    after = value if isinstance(value, str) else value()
    server.fault("GET", fake.say(429, b"Too many requests", Retry_After=after))
    assert client.jobs() == []
    assert len(server.sent("GET")) == 2


def test_a_rate_limit_that_is_far_off_is_told(server: FakePAI, client: Client) -> None:
    server.fault("GET", fake.say(429, b"Too many requests", Retry_After="3500"))
    with pytest.raises(ServerRefusedError, match="try again in 58 minutes"):
        client.jobs()
    assert len(server.sent("GET")) == 1


def test_a_rate_limit_on_submitting(server: FakePAI, client: Client) -> None:
    server.fault("POST", fake.say(429, b"Too many requests", Retry_After="60"))
    with pytest.raises(ServerRefusedError, match="try again in 60 s"):
        client.submit("one", TEXT)
    assert len(server.sent("POST")) == 1


# Faults on the way that pass: reading gets over two of them.
PASSING = {
    "hang up": fake.drop,
    "broken off": fake.truncate,
    "proxy": fake.page(502),
    "overload": fake.say(503, b'{"message":"later"}'),
    "failure": fake.say(500, b'{"code":"UnknownError","message":"connect ECONNREFUSED"}'),
    "failure without a word": fake.say(500, b""),
}
# Faults that stay: asking again does not help.
STAYING = {
    "login page": (fake.page(200, "Sign in"), "a web page titled 'Sign in' came back"),
    "no JSON": (fake.say(200, b"OK"), r"damaged or cut short \(2 bytes: 'OK'\)"),
    "cut JSON": (fake.say(200, b'[{"name": "o'), "damaged or cut short"),
    "wrong JSON": (fake.say(200, b'{"data": 3}'), "not a list of jobs"),
    "deep JSON": (fake.say(200, b"[" * 200_000), "damaged or cut short"),
    "redirect": (
        fake.say(302, b"", Location="https://user:pw@evil.example/login?token=1"),
        "redirects to https://evil.example ",
    ),
    "wrong address": (fake.say(404, b"Cannot GET"), "is this the address of an OpenPAI portal"),
}


@pytest.mark.parametrize("fault", PASSING)
def test_reading_is_repeated(server: FakePAI, client: Client, fault: str) -> None:
    server.add_job("one")
    server.fault("GET", PASSING[fault], PASSING[fault])
    assert [job["name"] for job in client.jobs()] == ["one"]
    assert len(server.sent("GET")) == 3


@pytest.mark.parametrize("fault", PASSING)
def test_reading_is_not_repeated_for_ever(server: FakePAI, client: Client, fault: str) -> None:
    server.fault("GET", *[PASSING[fault]] * 9)
    with pytest.raises(PAIError) as error:
        client.jobs()
    assert len(server.sent("GET")) == 3
    one_line(error)


def test_a_failure_of_the_server_is_told_as_one(server: FakePAI, client: Client) -> None:
    said = b'{"code":"UnknownError","message":"connect ECONNREFUSED 10.0.0.1:5432"}'
    server.add_job("one")
    for method, ask in (("GET", client.jobs), ("GET", lambda: client.job("one"))):
        server.fault(method, *[fake.say(500, said)] * 3)
        with pytest.raises(
            UnreachableError, match=r"OpenPAI's server failed with .*\(500: connect"
        ):
            ask()
    server.fault("PUT", *[fake.say(500, said)] * 2)
    client.stop("one")
    server.fault("GET", *[fake.page(502)] * 3)
    with pytest.raises(UnreachableError) as error:
        client.jobs()
    assert one_line(error) == (
        "OpenPAI's server is not available: a proxy before it answers with a page titled "
        "'502 Bad Gateway' (status 502): try again later, and tell an administrator if it lasts"
    )


def test_an_attempt_that_is_not_there(server: FakePAI, client: Client) -> None:
    server.add_job("one", attempts=3, lost=frozenset({1}))
    assert client.job("one", attempt=0)["jobStatus"]["attemptId"] == 0
    with pytest.raises(ServerRefusedError) as error:
        client.job("one", attempt=7)
    assert error.value.code == "NoAttemptError"
    assert one_line(error) == "job 'one' has no attempt 7: the newest is 2"
    with pytest.raises(ServerRefusedError, match="has not kept attempt 1 of job 'one': the newest"):
        client.job("one", attempt=1)
    with pytest.raises(ServerRefusedError, match="there is no job 'two' on this cluster"):
        client.job("two", attempt=7)


@pytest.fixture
def silence_is_known(openpai: FakePAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's time-out is over as soon as the server has decided to say nothing, and not before."""
    read = SyncStream.read

    def wait(stream: SyncStream, max_bytes: int, timeout: float | None = None) -> bytes:
        while not select.select([stream.get_extra_info("socket")], [], [], 0.005)[0]:
            if openpai.silence.acquire(blocking=False):
                raise httpcore.ReadTimeout
        return read(stream, max_bytes, timeout)

    monkeypatch.setattr(SyncStream, "read", wait)


@pytest.mark.usefixtures("silence_is_known")
def test_silence_is_asked_again_but_not_for_ever(openpai: FakePAI) -> None:
    openpai.add_job("one")
    with connect(openpai.url) as client:
        openpai.fault("GET", fake.silent)
        assert [job["name"] for job in client.jobs()] == ["one"]
        assert len(openpai.sent("GET")) == 2
        openpai.fault("GET", *[fake.silent] * 9)
        with pytest.raises(UnreachableError, match="silent for too long") as error:
            client.jobs()
        assert len(openpai.sent("GET")) == 5
        one_line(error)


def test_the_clients_own_time_out_ends_silence(openpai: FakePAI) -> None:
    openpai.fault("GET", *[fake.silent] * 9)
    with (
        connect(
            openpai.url, limits=replace(QUICK, read=0.1)
        ) as client,  # no answer can be too late
        pytest.raises(UnreachableError, match="silent for too long"),
    ):
        client.jobs()


@pytest.mark.usefixtures("silence_is_known")
def test_a_post_that_met_silence_is_sent_again_when_the_job_is_not_there(openpai: FakePAI) -> None:
    openpai.fault("POST", fake.silent)
    with connect(openpai.url) as client:
        assert client.submit("one", TEXT) == "accepted"
    kinds = [request.method for request in openpai.requests]
    first, second = (index for index, kind in enumerate(kinds) if kind == "POST")
    assert "GET" in kinds[first:second]


@pytest.mark.parametrize("fault", STAYING)
def test_what_is_no_answer_is_told(server: FakePAI, client: Client, fault: str) -> None:
    spoil, words = STAYING[fault]
    server.fault("GET", spoil)
    with pytest.raises(PAIError, match=words) as error:
        client.jobs()
    said = one_line(error)
    assert "pw" not in said
    assert "token=1" not in said
    assert len(server.sent("GET")) == 1


def test_stopping_is_repeated_because_it_may_be(server: FakePAI, client: Client) -> None:
    server.add_job("one")
    server.fault("PUT", fake.act_then_drop)
    client.stop("one")
    assert len(server.sent("PUT")) == 2


def test_no_redirect_is_followed_with_the_token(client: Client, server: FakePAI) -> None:
    with FakePAI() as other:
        for status_code in (301, 302, 303, 307, 308):
            server.fault("GET", fake.say(status_code, b"", Location=other.url + "/rest-server"))
            with pytest.raises(UnreachableError, match="a token must not follow"):
                client.jobs()
        assert not other.requests


@pytest.mark.parametrize("fault", [fake.act_then_drop, fake.act_then_fail])
def test_a_job_that_was_stored_although_the_post_failed(
    server: FakePAI, client: Client, fault: Callable[..., None]
) -> None:
    server.fault("POST", fault)
    assert client.submit("one", TEXT).startswith("stored, although")
    assert len(server.sent("POST")) == 1
    assert list(server.jobs) == [("alice", "one")]


@pytest.mark.parametrize(
    "fault",
    [fake.drop, fake.page(502), fake.page(200, "Sign in")],
)
def test_a_post_is_sent_again_only_when_the_job_is_not_there(
    server: FakePAI, client: Client, fault: Callable[..., None]
) -> None:
    server.fault("POST", fault)
    assert client.submit("one", TEXT) == "accepted"
    kinds = [request.method for request in server.requests]
    first, second = (index for index, kind in enumerate(kinds) if kind == "POST")
    assert "GET" in kinds[first:second]


def test_a_post_that_fails_twice(server: FakePAI, client: Client) -> None:
    server.fault("POST", fake.drop, fake.drop)
    with pytest.raises(UnreachableError, match="closed the connection too early"):
        client.submit("one", TEXT)
    assert len(server.sent("POST")) == 2


def test_a_second_post_that_meets_the_first_ones_job(server: FakePAI, client: Client) -> None:
    def store_late(handler: fake._Handler) -> None:
        server.jobs["alice", "one"] = fake.StoredJob("alice", TEXT)
        handler.answer()

    server.fault("POST", fake.drop, store_late)
    assert client.submit("one", TEXT).startswith("stored, although")


def test_a_post_whose_fate_is_unknown(server: FakePAI, client: Client) -> None:
    def die(handler: fake._Handler) -> None:
        server.fault("GET", *[fake.drop] * 9)
        fake.act_then_drop(handler)

    server.fault("POST", die)
    with pytest.raises(UnreachableError, match="whether the job was stored is unknown") as error:
        client.submit("one", TEXT)
    assert "pai job status one" in one_line(error)
    assert len(server.sent("POST")) == 1


def test_nobody_listens() -> None:
    naps: list[float] = []
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with Client(Cluster("t", url, "alice"), TOKEN, QUICK, naps.append) as client:
            with pytest.raises(UnreachableError, match="cannot be reached") as error:
                client.submit("one", TEXT)
            assert url in one_line(error)
    assert len(naps) == QUICK.repetitions


def test_a_name_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_address(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    # Some networks give every name the address of a page of their own.
    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    words = r"http://no-such-host\.invalid cannot be reached"
    with connect("http://no-such-host.invalid") as client:
        with pytest.raises(UnreachableError, match=words) as error:
            client.jobs()
        one_line(error)


def test_answers_are_bounded_in_time(server: FakePAI) -> None:
    """Each would trickle for 80 minutes; half a minute passes with each byte that comes."""
    server.fault("GET", fake.trickle, fake.trickle, fake.trickle)
    clock = itertools.count(0.0, 30.0).__next__
    cluster = Cluster("test", server.url, "alice")
    with (
        Client(cluster, TOKEN, QUICK, clock=clock) as client,
        pytest.raises(UnreachableError, match="not complete after"),
    ):
        client.jobs()
    assert len(server.sent("GET")) == 3


def test_answers_are_bounded_in_size(
    server: FakePAI, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_RESPONSE_BYTES", 1 << 20)
    server.fault("GET", *[fake.endless] * 3)
    with pytest.raises(UnreachableError, match="larger than 1 MiB"):
        client.jobs()


def test_tls_is_verified(certificate: Path) -> None:
    with FakePAI(certificate=certificate) as server:
        naps: list[float] = []
        with Client(Cluster("t", server.url, "alice"), TOKEN, QUICK, naps.append) as client:
            with pytest.raises(UnreachableError, match=r"TLS failed \(self.signed") as error:
                client.jobs()
            assert "--ca-bundle" in one_line(error)
        assert not naps  # a wrong certificate stays wrong
        assert not server.requests
        with connect(server.url, ca_bundle=certificate) as client:
            assert client.jobs() == []
        with connect(server.url, insecure=True) as client:
            assert client.jobs() == []


def test_another_hosts_certificate_is_refused(certificate: Path) -> None:
    with FakePAI(certificate=certificate) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        with connect(url, ca_bundle=certificate) as client:
            with pytest.raises(UnreachableError, match=r"TLS failed \(.*localhost"):
                client.jobs()
            assert not server.requests


def test_tls_where_none_is_spoken(server: FakePAI) -> None:
    with connect(server.url.replace("http://", "https://")) as client:
        with pytest.raises(UnreachableError, match="TLS failed") as error:
            client.jobs()
        one_line(error)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_ca_bundle_that_is_none(tmp_path: Path, content: str | None) -> None:
    bundle = tmp_path / "ca.pem"
    if content:
        bundle.write_text(content)
    with pytest.raises(ConfigurationError, match=r"CA bundle .*ca.pem"):
        Client(Cluster("t", "https://x", "alice", ca_bundle=bundle), TOKEN)


def test_no_secret_is_told(
    server: FakePAI, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.hide("the-jobs-secret")
    echo = f"your {TOKEN} and the-jobs-secret: " + TOKEN[:30]
    errors = []
    with caplog.at_level(logging.DEBUG):
        for body, kind in (
            (json.dumps({"code": "X", "message": echo}), "application/json"),
            (f"<html><title>{echo}</title>", "text/html"),
            (echo, "text/plain"),
        ):
            server.fault("PUT", fake.say(418, body.encode(), Content_Type=kind))
            with pytest.raises(PAIError) as error:
                client.stop("one")
            errors.append(str(error.value))
        server.add_job(
            "one", logs={"worker:0": b"x"}, tasks={"worker": [fake.task("worker", 0, "R", "one")]}
        )
        addresses = client.log_addresses(fake.task("worker", 0, "RUNNING", "one")["containerLog"])
        with client.open_log(addresses["all"]) as log:
            assert b"".join(log.parts) == b"x"
    told = "\n".join(errors) + repr(client) + repr(vars(client)) + caplog.text
    assert "******" in told
    for secret in (TOKEN, "the-jobs-secret", LOG_TOKEN):
        assert secret not in told


def test_logs_do_not_get_the_token(server: FakePAI, client: Client) -> None:
    path = fake.task("worker", 0, "RUNNING", "one")["containerLog"]
    server.add_job("one", logs={"worker:0": b"hello"})
    address = client.log_addresses(path)["all"]
    with client.open_log(address, "2-") as log:
        assert (log.status, b"".join(log.parts)) == (206, b"llo")
    assert "authorization" not in server.requests[-1].headers
    stale = client.open_log(address.replace(LOG_TOKEN, "stale-token"))
    with pytest.raises(ServerRefusedError) as error, stale:
        pass
    assert "stale" not in one_line(error)


def test_control_characters_of_a_server_do_not_reach_the_terminal() -> None:
    body = json.dumps({"code": "\x1b]0;x\x07", "message": "a\x1b[2J\nb\u202ec"}).encode()
    error = refusal(Response(418, {}, body), "it")
    assert str(error).isprintable()
    assert "a[2J bc" in str(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
ajv_errors = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "dataPath": json_values,
            "instancePath": json_values,
            "message": json_values,
            "params": json_values,
        },
    ),
    max_size=30,
)


@pytest.mark.fuzz
@given(
    st.integers(100, 599),
    st.dictionaries(
        st.sampled_from(["content-type", "retry-after", "location"]), st.text(max_size=60)
    ),
    st.binary(max_size=200)
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.builds(
        lambda code, message: json.dumps({"code": code, "message": message}).encode(),
        json_values | st.sampled_from(["InvalidProtocolError", "NoStorageError", "NoJobError"]),
        json_values | ajv_errors.map(json.dumps),
    ),
)
def test_any_refusal_is_one_printable_line(
    status_code: int, headers: dict[str, str], body: bytes
) -> None:
    answer = Response(status_code, headers, body)
    text = str(refusal(answer, "the job"))
    assert text.isprintable()
    assert len(text) < 5000
    after = answer.retry_after()
    assert after is None or after >= 0


@pytest.mark.fuzz
@given(json_values | ajv_errors.map(json.dumps))
def test_any_complaints_are_a_short_list(message: object) -> None:
    found = complaints(message)
    assert len(found) <= 11
    assert all(text.isprintable() for text in found)


@pytest.mark.fuzz
@given(
    json_values
    | st.fixed_dictionaries(
        {"jobStatus": json_values | st.fixed_dictionaries({"state": json_values})},
        optional={"taskRoles": json_values, "name": json_values},
    )
)
def test_any_status_is_read_or_refused(value: object) -> None:
    if isinstance(value, dict):
        with suppress(UnreachableError):
            assert status.read(value).reason().isprintable()

"""Whatever a server, a proxy or something else sends: an answer, or one sentence, at a bounded cost."""

import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggs.errors import PAIError, UnreachableError
from ggs.pai.client import status
from ggs.pai.client.clusters import Cluster
from ggs.pai.client.job_filter import JobFilter
from ggs.pai.client.responses import Response, complaints, refusal
from ggs.pai.client.rest import Client
from ggs.pai.client.transport import Limits
from tests.fuzz import EDITS, Edits, bounded, cases, damaged
from tests.pai import fake_server as fake
from tests.pai.fake_server import TOKEN, FakePAI

ONCE = Limits(connect=5, read=30, answer=60, repetitions=0, backoff=0.01, longest_wait=0.1)


class Port:
    """Something that listens and sends ``content`` to whoever asks, then hangs up."""

    def __init__(self) -> None:
        self.content = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection, suppress(OSError):
                if not (asked := connection.recv(65536)):
                    return
                while b"\r\n\r\n" not in asked and (more := connection.recv(65536)):
                    asked += more
                connection.sendall(self.content)

    def close(self) -> None:
        socket.create_connection(self._socket.getsockname()).close()
        self._thread.join(10)
        self._socket.close()


@pytest.fixture(scope="module")
def port() -> Iterator[Port]:
    found = Port()
    yield found
    found.close()


@pytest.fixture(scope="module")
def asking(port: Port) -> Iterator[Client]:
    with Client(Cluster("test", port.url, "alice"), TOKEN, ONCE) as found:
        yield found


def read_address(client: Client, address: str) -> None:
    with client.open_log(address) as log:
        b"".join(log.parts)


def read_log(client: Client) -> None:
    for address in client.log_addresses("/api/v2/jobs/one/logs").values():
        read_address(client, address)


CALLS: dict[str, Callable[[Client], object]] = {
    "jobs": lambda client: client.jobs(),
    "job": lambda client: status.read(client.job("one")).reason(),
    "config": lambda client: client.config("one"),
    "exists": lambda client: client.exists("one"),
    "stop": lambda client: client.stop("one"),
    "submit": lambda client: client.submit("one", "name: one\n"),
    "log": read_log,
}
BODIES = [
    b'[{"name": "one", "state": "RUNNING"}]',
    b'{"name": "one", "jobStatus": {"state": "RUNNING", "retries": 0}, "taskRoles": {}}',
    b'{"code": "NoJobError", "message": "Job alice~one is not found."}',
    b'{"locations": [{"name": "all", "uri": "/log-manager/x?token=1"}]}',
    b"name: one\ntype: job\n",
    b"<html><head><title>Sign in</title></head></html>",
]


def whole(line: bytes, body: bytes, *headers: bytes) -> bytes:
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join([b"HTTP/1.1 " + line, length, b"Connection: close", *headers, b"", body])


def one_sentence(client: Client, call: str) -> None:
    message = ""
    try:
        CALLS[call](client)
    except PAIError as error:
        message = str(error)
    assert message == "" or message.isprintable()
    assert len(message) < 5000


@pytest.mark.fuzz
@cases(0.3)
@given(st.sampled_from([*CALLS]), st.binary(max_size=300))
def test_noise_instead_of_http(port: Port, asking: Client, call: str, content: bytes) -> None:
    port.content = content
    one_sentence(asking, call)


@pytest.mark.fuzz
@given(
    st.sampled_from([*CALLS]),
    st.sampled_from([b"200 OK", b"202 Accepted", b"404 Not Found", b"500 Error", b"307 There"]),
    st.sampled_from(BODIES),
    EDITS,
    st.booleans(),
)
def test_damaged_answers(
    port: Port, asking: Client, call: str, line: bytes, body: bytes, edits: Edits, inside: bool
) -> None:
    """Damage in the body only, under right headers, or anywhere."""
    port.content = (
        whole(line, damaged(body, edits)) if inside else damaged(whole(line, body), edits)
    )
    one_sentence(asking, call)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.fuzz
@cases(0.5)
@given(
    st.lists(st.fixed_dictionaries({"name": st.text(max_size=5), "uri": st.text() | json_values})),
    st.text(),
)
def test_any_addresses_of_logs(
    port: Port, asking: Client, locations: list[dict[str, Any]], path: str
) -> None:
    port.content = whole(b"200 OK", json.dumps({"locations": locations}).encode())
    addresses: dict[str, str] = {}
    with suppress(PAIError):
        addresses = asking.log_addresses("/api/v2/jobs/" + path)
    for address in addresses.values():
        if "://" not in address:  # else it might be anybody's
            message = ""
            try:
                read_address(asking, address)
            except PAIError as error:
                message = str(error)
            assert message == "" or message.isprintable()


@pytest.mark.parametrize("text", ["\x00", "\ud800", "a b", "x" * 100_000, "%", "\n\n"])
def test_no_text_in_an_address_is_a_crash(port: Port, asking: Client, text: str) -> None:
    port.content = whole(b"200 OK", BODIES[0])
    calls: list[Callable[[], object]] = [
        lambda: asking.log_addresses("/api/v2/jobs/" + text),
        lambda: asking.job(text),
        lambda: asking.jobs(JobFilter(users=[text], keyword=text)),
        lambda: read_address(asking, asking.cluster.uri + text),
        lambda: read_address(asking, f"http://{text}/"),
    ]
    for call in calls:
        message = ""
        try:
            call()
        except PAIError as error:
            message = str(error)
        assert message == "" or message.isprintable()


@pytest.mark.parametrize("host", ["a" * 70 + ".b", "☃\u0301x..b", "xn--zz99ä", "xn--", "\ud800"])
def test_no_host_is_a_crash(host: str) -> None:
    with Client(Cluster("test", f"https://{host}", "alice"), TOKEN, ONCE) as client:
        with pytest.raises(UnreachableError, match="is not a valid web address") as error:
            client.jobs()
        assert str(error.value).isprintable()


WRONG = {
    "1 GiB that never comes": (
        whole(b"200 OK", b"[]").replace(b": 2", b": 1073741824"),
        "closed the connection",
    ),
    "a negative length": (whole(b"200 OK", b"[]").replace(b": 2", b": -2"), "not speak HTTP"),
    "no number": (whole(b"200 OK", b"[]").replace(b": 2", b": two"), "not speak HTTP"),
    "too many digits": (whole(b"200 OK", b"[]").replace(b": 2", b": " + b"9" * 5000), "not speak"),
    "too short": (whole(b"200 OK", b"[]").replace(b": 2", b": 1"), "damaged or cut short"),
    "two lengths": (whole(b"200 OK", b"[]", b"Content-Length: 3"), "not speak HTTP"),
    "a huge piece": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n[]",
        "closed the connection too early",
    ),
    "no number of a piece": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n[]\r\n0\r\n\r\n",
        "not speak HTTP",
    ),
    "a long header": (whole(b"200 OK", b"[]", b"X: " + b"x" * 10**7), "not speak HTTP"),
    "many headers": (whole(b"200 OK", b"[]", *[b"X: x"] * 10**6), "not speak HTTP"),
    "a long line": (b"HTTP/1.1 200 " + b"O" * 10**7, "not speak HTTP"),
    "deep lists": (whole(b"200 OK", b"[" * 10**6), "damaged or cut short"),
    "deep mappings": (whole(b"200 OK", b'{"a":' * 10**6), "damaged or cut short"),
    "just deep enough for the reader": (whole(b"200 OK", b"[" * 900 + b"]" * 900), "damaged"),
    "a long number": (whole(b"200 OK", b"9" * 10**6), "damaged or cut short"),
    "a long title": (whole(b"500 No", b"<title" * 10**6), "answers with a page"),
    "no gzip": (whole(b"200 OK", b"[]", b"Content-Encoding: gzip"), "DecodingError"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_lengths_and_long_fields(port: Port, asking: Client, case: str) -> None:
    port.content, words = WRONG[case]
    with bounded(), pytest.raises(PAIError, match=words) as error:
        asking.jobs()
    assert len(str(error.value)) < 1000


def packed(times: int) -> bytes:
    content = b"[" + b" " * (100 << 20) + b"]"
    for _ in range(times):
        content = gzip.compress(content, 9 if len(content) < 1 << 20 else 1)
    return content


@pytest.mark.parametrize(
    ("encoding", "times", "words"),
    [
        (b"gzip", 1, "larger than 32 MiB"),
        (b"gzip, gzip", 2, "packed as 'gzip, gzip', which was not requested"),
        (b"br", 0, "packed as 'br'"),
        (b"zstd", 0, "packed as 'zstd'"),
    ],
)
def test_a_bomb_of_packed_data(
    port: Port, asking: Client, encoding: bytes, times: int, words: str
) -> None:
    port.content = whole(b"200 OK", packed(times), b"Content-Encoding: " + encoding)
    with bounded(), pytest.raises(UnreachableError, match=words):
        asking.jobs()
    if times != 1:  # a log may be of any length
        with bounded(), pytest.raises(UnreachableError, match=words):
            read_address(asking, asking.cluster.uri)


def test_an_answer_that_a_proxy_packed_is_read(port: Port, asking: Client) -> None:
    body = gzip.compress(b'[{"name": "one"}]')
    port.content = whole(b"200 OK", body, b"Content-Encoding: gzip")
    assert [job["name"] for job in asking.jobs()] == ["one"]


BOMB = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
MERGES = ["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 40))]


@pytest.mark.parametrize(
    "text",
    ["\n".join(BOMB), "\n".join(MERGES), 'a: !!int ""', "a: !!bool x", "a: 0x" + "f" * 5000,
     "a: " + "{a: " * 5000, "a: 1:" + "1:" * 200 + "1.5"],
    ids=["aliases", "merges", "int", "bool", "hexadecimal", "deep", "sexagesimal"],
)  # fmt: skip
def test_a_stored_file_that_is_a_bomb(port: Port, asking: Client, text: str) -> None:
    port.content = whole(b"200 OK", text.encode(), b"Content-Type: text/yaml")
    stored = None
    with bounded(), suppress(UnreachableError):
        stored = asking.config("one")
    assert len(str(stored)) < 100


def test_complaints_of_any_depth() -> None:
    """Also where JSON can be read, and is too deep to be written again."""
    for depth in (50, *range(900, 1000), 10**6):
        text = '[{"params": {"allowedValues": ' + "[" * depth + "]" * depth + "}}]"
        with bounded():
            assert all(len(found) < 1000 for found in complaints(text))
            body = json.dumps({"code": "InvalidProtocolError", "message": text}).encode()
            assert len(str(refusal(Response(400, {}, body), "the job"))) < 1000


def test_a_login_without_a_token() -> None:
    with FakePAI() as server, Client(Cluster("t", server.url, "alice"), None, ONCE) as client:
        for value in (None, [], {}, {"token": None}, {"token": ["x"]}):
            server.fault("POST", fake.say(200, json.dumps(value).encode()))
            with pytest.raises(UnreachableError, match="has no token"):
                client.login("password")

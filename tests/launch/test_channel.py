"""What comes over a channel, from another task or from anybody: objects, or Lost, at a bounded cost."""

import json
import socket
import threading
from contextlib import closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggs.launch.channel import MAX_LINE, Channel, Lost
from tests.fuzz import EDITS, Edits, bounded, damaged

MESSAGE = json.dumps({"protocol": "ggs-rendezvous-1", "run": "0_uid", "node": 1}).encode() + b"\n"


def receive(content: bytes) -> list[object]:
    """All that a channel makes of ``content``, which somebody sends before hanging up."""
    found: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        sender = threading.Thread(target=send, args=(there, content))
        sender.start()
        with closing(Channel(server.accept()[0])) as channel, suppress(Lost):
            while True:
                found.append(channel.receive(60))
    sender.join(60)
    return found


def send(connection: socket.socket, content: bytes) -> None:
    with connection, suppress(OSError):
        connection.sendall(content)


def test_what_was_sent_arrives() -> None:
    assert receive(MESSAGE * 2) == [json.loads(MESSAGE)] * 2


@pytest.mark.fuzz
@given(
    st.binary(max_size=200)
    | st.lists(st.binary(max_size=20) | st.sampled_from([b"{}", b"[1]", b"1", MESSAGE])).map(
        b"\n".join
    )
)
def test_any_bytes(content: bytes) -> None:
    assert all(isinstance(message, dict) for message in receive(content))


@pytest.mark.fuzz
@given(EDITS)
def test_damaged_messages(edits: Edits) -> None:
    assert all(isinstance(message, dict) for message in receive(damaged(MESSAGE * 3, edits)))


@pytest.mark.parametrize(
    "content",
    [
        b"[" * (MAX_LINE - 1) + b"\n",
        b'{"a":' * 50_000 + b"\n",
        b'{"run": ' + b"9" * (MAX_LINE - 20) + b"}\n",
        b"x" * 10**8,
        b"[" * 10**8,
        b"\0" * 10**8,
    ],
    ids=["deep lists", "deep objects", "number", "endless", "endless lists", "zeros"],
)
def test_a_line_made_to_be_large_or_slow(content: bytes) -> None:
    with bounded(mebibytes=128):
        assert receive(content) == []

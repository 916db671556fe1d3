"""JSON objects, one a line, over a socket to a process that may be anything, or go away at any time."""

import json
import selectors
import socket
import time
from typing import Any

UNREACHABLE_SECONDS = 60
"""After so long without an answer a machine counts as lost."""
ANSWER_SECONDS = 5.0
"""What the other side may take to say who it is."""
MAX_LINE = 256 * 1024
"""Bytes. A report holds at most failure.MAX_TEXT characters, each up to six bytes in JSON."""


class Lost(Exception):
    """The other side closed the connection, or speaks something else."""


class Channel:
    """JSON objects, one a line, over a connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 9)
        connection.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREACHABLE_SECONDS * 1000
        )

    def send(self, **message: Any) -> None:
        """Send one object. Raises Lost if the other side does not take it within ANSWER_SECONDS."""
        try:
            self._socket.settimeout(ANSWER_SECONDS)
            self._socket.sendall(json.dumps(message).encode() + b"\n")
            self._socket.setblocking(False)
        except OSError as error:
            raise Lost(str(error)) from None

    def receive(self, seconds: float = 0.0) -> dict[str, Any] | None:
        """The next object, or None if none comes within so many seconds. Raises Lost."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            if len(self._buffer) > MAX_LINE:
                raise Lost("a line without end")
            try:
                data = self._socket.recv(65536)
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                with selectors.DefaultSelector() as selector:
                    selector.register(self._socket, selectors.EVENT_READ)
                    selector.select(left)
                continue
            except OSError as error:
                raise Lost(str(error)) from None
            if not data:
                raise Lost("closed")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise Lost("not JSON") from None
        if not isinstance(message, dict):
            raise Lost("not an object")
        return message

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

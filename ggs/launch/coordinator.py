"""How the tasks of a job find each other, and how they learn of each other's end.

The first node listens on one of the ports that OpenPAI gave it; the others try these ports in turn. A
line of JSON each way settles that the other side belongs to this very attempt of this job, so that
whatever else listens there (ports are not reserved on OpenPAI) confuses nobody. When all nodes are
there, the listening socket goes to torch's TCPStore; the connections stay. Over them a node that fails
says why, and a node that vanishes is noticed by its closed connection, at once or, if its machine is
unreachable, after UNREACHABLE_SECONDS. Nothing here imports torch, and every wait can be interrupted.

The connections are neither encrypted nor authenticated, like those of gloo and NCCL.
"""

import socket
import sys
import time
from contextlib import suppress
from typing import Any

from ggs.errors import MismatchError, RendezvousError
from ggs.launch.channel import ANSWER_SECONDS, Channel, Lost
from ggs.launch.failures import Failure, root_cause
from ggs.launch.placement import Placement
from ggs.launch.rendezvous import SETTLE_SECONDS, Deadline, Rendezvous
from ggs.output import say

_MAX_NEWCOMERS = 256


class Coordinator(Rendezvous):
    """The first node. With no other nodes it has nobody to wait for."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self.listener: socket.socket | None = None
        """Listens on the agreed port. Whoever takes it over sets None here."""
        self._members: dict[int, Channel] = {}
        self._done: set[int] = set()
        self._failures: dict[int, Failure] = {}
        self._stopped: set[int] = set()
        self._first_done: float | None = None

    def gather(self) -> int:
        self.listener = _listen(self._placement)
        port = int(self.listener.getsockname()[1])
        deadline = Deadline(self._placement.rendezvous_timeout)
        newcomers: list[tuple[Channel, float]] = []
        try:
            while missing := self._missing():
                if deadline.is_over():
                    raise RendezvousError(
                        self._dismiss(f"{missing} did not come within {deadline}")
                    )
                deadline.report(f"waiting for {missing} at {self._placement.master}:{port}")
                with suppress(OSError):  # nobody came, or went away again
                    if len(newcomers) < _MAX_NEWCOMERS:
                        newcomers.append((Channel(self.listener.accept()[0]), time.monotonic()))
                newcomers = [entry for entry in newcomers if not self._admit(*entry)]
                self._drop_the_lost()
        finally:
            for channel, _ in newcomers:
                channel.close()
        for node, channel in self._members.items():
            with suppress(Lost):  # poll() will see that it is gone
                channel.send(**self._hello(go=node))
        self.gathered = True
        return port

    def poll(self) -> bool:
        for node, channel in self._members.items():
            self._listen_to(node, channel)
        limit = self._placement.finish_timeout
        if self._first_done is not None and time.monotonic() > self._first_done + limit:
            for node in range(len(self._placement.tasks)):
                if node not in self._done:
                    self._failures.setdefault(node, self._late(node))
        return bool(self._failures)

    def settle(self, local: Failure | None) -> Failure:
        if local is not None:
            self._failures[0] = local
        for channel in self._members.values():
            with suppress(Lost):
                channel.send(stop=True)
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline and self._unheard():
            self.poll()
            time.sleep(0.02)
        cause = root_cause(self._failures.values())
        for channel in self._members.values():
            with suppress(Lost):
                channel.send(failure=cause.to_message())
        return cause

    def finish(self) -> bool:
        self._is_done(0)
        while len(self._done) <= len(self._members):
            if self.poll():
                return False
            time.sleep(0.05)
        for channel in self._members.values():
            with suppress(Lost):
                channel.send(done=True)
        return True

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()
        for channel in self._members.values():
            channel.close()

    def _listen_to(self, node: int, channel: Channel) -> None:
        if node in self._failures:
            return
        try:
            while (message := channel.receive()) is not None:
                if "failure" in message:
                    self._failures[node] = Failure.from_message(message["failure"])
                elif "stopped" in message:
                    self._stopped.add(node)
                elif "done" in message:
                    self._is_done(node)
        except (Lost, ValueError):
            if not {node} & (self._failures.keys() | self._done | self._stopped):
                self._failures[node] = self._gone(node)

    def _is_done(self, node: int) -> None:
        self._done.add(node)
        self._first_done = self._first_done or time.monotonic()

    def _unheard(self) -> bool:
        return bool(self._members.keys() - self._failures.keys() - self._stopped)

    def _admit(self, channel: Channel, since: float) -> bool:
        """Whether a newcomer is dealt with: taken in, or sent away."""
        try:
            message = channel.receive()
            if message is None:
                if time.monotonic() < since + ANSWER_SECONDS:
                    return False
                raise Lost("silent")
            node = message.get("node")
            if not self._is_ours(message) or not isinstance(node, int):
                raise Lost("another job's")
            self._check_layout(node, message.get("layout"))
            if node in self._members:
                raise Lost(f"node {node} is here already")
            channel.send(**self._hello(welcome=node))
            self._members[node] = channel
        except Lost:
            channel.close()
        except MismatchError as error:
            with suppress(Lost):
                channel.send(**self._hello(refused=str(error)))
            channel.close()
            self._dismiss(str(error))
            raise
        return True

    def _check_layout(self, node: int, layout: Any) -> None:
        ours, tasks = self._placement.layout, self._placement.tasks
        if not 0 < node < len(tasks):
            raise MismatchError(f"a task calls itself node {node}, but there are {len(tasks)}")
        if layout != ours:
            raise MismatchError(
                f"task {tasks[node]} was launched for {str(layout)[:300]}, but {tasks[0]} for {ours}; "
                "give all tasks the same command"
            )

    def _drop_the_lost(self) -> None:
        for node, channel in list(self._members.items()):
            try:
                channel.receive()
            except Lost:
                channel.close()
                del self._members[node]

    def _dismiss(self, reason: str) -> str:
        for channel in self._members.values():
            with suppress(Lost):
                channel.send(**self._hello(dismissed=reason))
        return reason

    def _missing(self) -> str:
        """The tasks that are not here yet, in words; empty if all are."""
        tasks = self._placement.tasks
        names = [tasks[node] for node in range(1, len(tasks)) if node not in self._members]
        if not names:
            return ""
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        return f"task{'s' if len(names) > 1 else ''} {', '.join(names[:8])}{more}"


def _listen(placement: Placement) -> socket.socket:
    """A listening socket of the first node, on the first of its ports that is free, on no other address."""
    family = socket.AF_INET6 if ":" in placement.master else socket.AF_INET
    for port in placement.ports or (0,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            # The last attempt's closed connections must not block the port; a listener still does.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((placement.master, port))
            listener.listen(min(4096, 16 + sum(placement.workers)))
        except OSError as error:
            listener.close()
            say(
                sys.stderr,
                f"ggs: port {port} of {placement.master} is not usable: {error.strerror}",
            )
            continue
        listener.settimeout(0.1)
        return listener
    raise RendezvousError(
        f"none of the ports {', '.join(map(str, placement.ports))} of {placement.master} can be listened "
        "on; a retry gets others, or declare more (ports: {SynPort: 3})"
    )

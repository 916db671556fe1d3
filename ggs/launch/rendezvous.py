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
from ggs.launch.meeting import SETTLE_SECONDS, Meeting, Patience
from ggs.launch.placement import Placement

_MAX_STRANGERS = 256


class Host(Meeting):
    """The first node. With no other nodes it has nobody to wait for."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self.listener: socket.socket | None = None
        """Listens on the agreed port. Whoever takes it over sets None here."""
        self._guests: dict[int, Channel] = {}
        self._done: set[int] = set()
        self._failures: dict[int, Failure] = {}
        self._stopped: set[int] = set()
        self._first_done: float | None = None

    def gather(self) -> int:
        self.listener = _listen(self._placement)
        port = int(self.listener.getsockname()[1])
        wait = Patience(self._placement.rendezvous_timeout)
        strangers: list[tuple[Channel, float]] = []
        try:
            while missing := self._missing():
                if wait.is_over():
                    raise RendezvousError(self._dismiss(f"{missing} did not come within {wait}"))
                wait.say(f"waiting for {missing} at {self._placement.master}:{port}")
                with suppress(OSError):  # nobody came, or went away again
                    if len(strangers) < _MAX_STRANGERS:
                        strangers.append((Channel(self.listener.accept()[0]), time.monotonic()))
                strangers = [entry for entry in strangers if not self._admit(*entry)]
                self._drop_the_lost()
        finally:
            for channel, _ in strangers:
                channel.close()
        for node, channel in self._guests.items():
            with suppress(Lost):  # poll() will see that it is gone
                channel.send(**self._hello(go=node))
        self.gathered = True
        return port

    def poll(self) -> bool:
        for node, channel in self._guests.items():
            self._listen_to(node, channel)
        patience = self._placement.finish_timeout
        if self._first_done is not None and time.monotonic() > self._first_done + patience:
            for node in range(len(self._placement.tasks)):
                if node not in self._done:
                    self._failures.setdefault(node, self._late(node))
        return bool(self._failures)

    def settle(self, own: Failure | None) -> Failure:
        if own is not None:
            self._failures[0] = own
        for channel in self._guests.values():
            with suppress(Lost):
                channel.send(stop=True)
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline and self._unheard():
            self.poll()
            time.sleep(0.02)
        cause = root_cause(self._failures.values())
        for channel in self._guests.values():
            with suppress(Lost):
                channel.send(failure=cause.to_message())
        return cause

    def finish(self) -> bool:
        self._is_done(0)
        while len(self._done) <= len(self._guests):
            if self.poll():
                return False
            time.sleep(0.05)
        for channel in self._guests.values():
            with suppress(Lost):
                channel.send(done=True)
        return True

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()
        for channel in self._guests.values():
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
        return bool(self._guests.keys() - self._failures.keys() - self._stopped)

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
            if node in self._guests:
                raise Lost(f"node {node} is here already")
            channel.send(**self._hello(welcome=node))
            self._guests[node] = channel
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
        for node, channel in list(self._guests.items()):
            try:
                channel.receive()
            except Lost:
                channel.close()
                del self._guests[node]

    def _dismiss(self, reason: str) -> str:
        for channel in self._guests.values():
            with suppress(Lost):
                channel.send(**self._hello(dismissed=reason))
        return reason

    def _missing(self) -> str:
        """The tasks that are not here yet, in words; empty if all are."""
        tasks = self._placement.tasks
        names = [tasks[node] for node in range(1, len(tasks)) if node not in self._guests]
        if not names:
            return ""
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        return f"task{'s' if len(names) > 1 else ''} {', '.join(names[:8])}{more}"


class Guest(Meeting):
    """Any other node."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self._host: Channel | None = None
        self._cause: Failure | None = None
        self._stopping = False
        self._done = False

    def gather(self) -> int:
        first, where = self._placement.tasks[0], self._placement.master
        ports = ", ".join(map(str, self._placement.ports))
        wait = Patience(self._placement.rendezvous_timeout)
        while not wait.is_over():
            wait.say(f"waiting for task {first} at {where}, port {ports}")
            for port in self._placement.ports:
                self._host = self._knock(port)
                if self._host is not None and self._stay(self._host):
                    self.gathered = True
                    return port
            time.sleep(0.5)
        raise RendezvousError(f"task {first} did not come to {where}, port {ports}, within {wait}")

    def poll(self) -> bool:
        assert self._host is not None
        try:
            while self._cause is None and (message := self._host.receive()) is not None:
                if "failure" in message:
                    self._cause = Failure.from_message(message["failure"])
                self._stopping = self._stopping or "stop" in message
                self._done = self._done or "done" in message
        except (Lost, ValueError):
            if not self._done:
                self._cause = self._gone(0)
        return self._stopping or self._cause is not None

    def settle(self, own: Failure | None) -> Failure:
        assert self._host is not None
        with suppress(Lost):  # poll() will see that it is gone
            if own is None:
                self._host.send(stopped=True)
            else:
                self._host.send(failure=own.to_message())
        deadline = time.monotonic() + 2 * SETTLE_SECONDS
        while self._cause is None and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.02)
        found = [failure for failure in (own, self._cause) if failure is not None]
        return root_cause(found or [self._gone(0)])

    def finish(self) -> bool:
        assert self._host is not None
        with suppress(Lost):  # poll() will see that it is gone
            self._host.send(done=True)
        deadline = time.monotonic() + self._placement.finish_timeout + 3 * SETTLE_SECONDS
        while not self._done:
            if self.poll():
                return False
            if time.monotonic() > deadline:  # the first node should have said so
                self._cause = self._late(0)
            time.sleep(0.05)
        return True

    def close(self) -> None:
        if self._host is not None:
            self._host.close()

    def _knock(self, port: int) -> Channel | None:
        """A connection to the first node, or None if nobody or somebody else is there."""
        placement = self._placement
        try:
            channel = Channel(socket.create_connection((placement.master, port), ANSWER_SECONDS))
        except OSError:
            return None
        answer = None
        with suppress(Lost):
            channel.send(**self._hello(node=placement.node, layout=placement.layout))
            answer = channel.receive(ANSWER_SECONDS)
        if answer is not None and self._is_ours(answer) and "welcome" in answer:
            return channel
        channel.close()
        if answer is not None and self._is_ours(answer) and "refused" in answer:
            raise MismatchError(str(answer["refused"])[:1000])
        return None

    def _stay(self, channel: Channel) -> bool:
        """Wait with the first node for the others. False if it went away: it may come back.

        The first node says when time is up; it came later than we, or no more than a moment earlier.
        """
        wait = Patience(self._placement.rendezvous_timeout + ANSWER_SECONDS)
        try:
            while not wait.is_over():
                wait.say(f"waiting, with task {self._placement.tasks[0]}, for the other tasks")
                message = channel.receive(0.5)
                if message is not None and "dismissed" in message:
                    raise RendezvousError(str(message["dismissed"])[:1000])
                if message is not None and "go" in message:
                    return True
        except Lost:
            pass
        channel.close()
        return False


def meet(placement: Placement) -> Host | Guest:
    """The meeting as this node sees it."""
    return Host(placement) if placement.node == 0 else Guest(placement)


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
            print(
                f"ggs: port {port} of {placement.master} is not usable: {error.strerror}",
                file=sys.stderr,
                flush=True,
            )
            continue
        listener.settimeout(0.1)
        return listener
    raise RendezvousError(
        f"none of the ports {', '.join(map(str, placement.ports))} of {placement.master} can be listened "
        "on; a retry gets others, or declare more (ports: {SynPort: 3})"
    )

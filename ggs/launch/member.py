"""Any node but the first in a job's rendezvous; see :mod:`ggs.launch.coordinator` for how it works."""

import socket
import time
from contextlib import suppress

from ggs.errors import MismatchError, RendezvousError
from ggs.launch.channel import ANSWER_SECONDS, Channel, Lost
from ggs.launch.failures import Failure, root_cause
from ggs.launch.placement import Placement
from ggs.launch.rendezvous import SETTLE_SECONDS, Deadline, Rendezvous


class Member(Rendezvous):
    """Any other node."""

    def __init__(self, placement: Placement) -> None:
        super().__init__(placement)
        self._coordinator: Channel | None = None
        self._cause: Failure | None = None
        self._stopping = False
        self._done = False

    def gather(self) -> int:
        first, where = self._placement.tasks[0], self._placement.master
        ports = ", ".join(map(str, self._placement.ports))
        deadline = Deadline(self._placement.rendezvous_timeout)
        while not deadline.is_over():
            deadline.report(f"waiting for task {first} at {where}, port {ports}")
            for port in self._placement.ports:
                self._coordinator = self._connect(port)
                if self._coordinator is not None and self._wait_for_others(self._coordinator):
                    self.gathered = True
                    return port
            time.sleep(0.5)
        raise RendezvousError(
            f"task {first} did not come to {where}, port {ports}, within {deadline}"
        )

    def poll(self) -> bool:
        assert self._coordinator is not None
        try:
            while self._cause is None and (message := self._coordinator.receive()) is not None:
                if "failure" in message:
                    self._cause = Failure.from_message(message["failure"])
                self._stopping = self._stopping or "stop" in message
                self._done = self._done or "done" in message
        except (Lost, ValueError):
            if not self._done:
                self._cause = self._gone(0)
        return self._stopping or self._cause is not None

    def settle(self, local: Failure | None) -> Failure:
        assert self._coordinator is not None
        with suppress(Lost):  # poll() will see that it is gone
            if local is None:
                self._coordinator.send(stopped=True)
            else:
                self._coordinator.send(failure=local.to_message())
        deadline = time.monotonic() + 2 * SETTLE_SECONDS
        while self._cause is None and time.monotonic() < deadline:
            self.poll()
            time.sleep(0.02)
        known = [failure for failure in (local, self._cause) if failure is not None]
        return root_cause(known or [self._gone(0)])

    def finish(self) -> bool:
        assert self._coordinator is not None
        with suppress(Lost):  # poll() will see that it is gone
            self._coordinator.send(done=True)
        deadline = time.monotonic() + self._placement.finish_timeout + 3 * SETTLE_SECONDS
        while not self._done:
            if self.poll():
                return False
            if time.monotonic() > deadline:  # the first node should have said so
                self._cause = self._late(0)
            time.sleep(0.05)
        return True

    def close(self) -> None:
        if self._coordinator is not None:
            self._coordinator.close()

    def _connect(self, port: int) -> Channel | None:
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

    def _wait_for_others(self, channel: Channel) -> bool:
        """Wait with the first node for the others. False if it went away: it may come back.

        The first node says when time is up; it came later than we, or no more than a moment earlier.
        """
        deadline = Deadline(self._placement.rendezvous_timeout + ANSWER_SECONDS)
        try:
            while not deadline.is_over():
                deadline.report(
                    f"waiting, with task {self._placement.tasks[0]}, for the other tasks"
                )
                message = channel.receive(0.5)
                if message is not None and "dismissed" in message:
                    raise RendezvousError(str(message["dismissed"])[:1000])
                if message is not None and "go" in message:
                    return True
        except Lost:
            pass
        channel.close()
        return False

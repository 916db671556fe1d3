"""What the launchers of a job's nodes do together, whichever node one is."""

import sys
import time
from abc import ABC, abstractmethod
from typing import Any

from ggs.launch import exit_codes
from ggs.launch.failures import Failure
from ggs.launch.placement import Placement
from ggs.output import say

PROTOCOL = "ggs-rendezvous-1"
SETTLE_SECONDS = 3.0
"""How long nodes collect each other's reports to tell the cause of a failure from its echoes."""
_SAY_EVERY = 60.0


class Rendezvous(ABC):
    """The launchers of all nodes, from the moment they look for each other until the job ends."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.gathered = False
        """Whether gather has found all nodes: before, there is nobody to tell of a failure."""

    @abstractmethod
    def gather(self) -> int:
        """Wait for all nodes. Returns the port of the first node that they met on.

        Raises RendezvousError after ``placement.rendezvous_timeout`` seconds, or if no port is free,
        and MismatchError if another node was launched otherwise.
        """

    @abstractmethod
    def poll(self) -> bool:
        """Whether another node has failed or is gone; does not wait."""

    @abstractmethod
    def settle(self, local: Failure | None) -> Failure:
        """After a failure here (``local``) or elsewhere: tell the others, and agree on the root cause."""

    @abstractmethod
    def finish(self) -> bool:
        """After success here: wait for the others. False if one of them failed: settle then."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

    def _hello(self, **more: Any) -> dict[str, Any]:
        return {"protocol": PROTOCOL, "run": self._placement.run_id, **more}

    def _is_ours(self, message: dict[str, Any]) -> bool:
        return message.get("protocol") == PROTOCOL and message.get("run") == self._placement.run_id

    def _late(self, node: int) -> Failure:
        text = f"still runs {self._placement.finish_timeout:g} s after others have ended: it hangs"
        return Failure(f"task {self._placement.tasks[node]}", text, exit_codes.RETRY, time.time())

    def _gone(self, node: int) -> Failure:
        task = self._placement.tasks[node]
        return Failure(f"task {task}", "gone without a word", exit_codes.RETRY, time.time())


class Deadline:
    """How long a node has waited for others, and may."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._start = time.monotonic()
        self._next_word = self._start + 2  # tasks that start together need not read about it

    def is_over(self) -> bool:
        """Whether there is no time left."""
        return time.monotonic() > self._start + self._seconds

    def report(self, what: str) -> None:
        """Tell what is waited for: after a moment, then once a minute."""
        now = time.monotonic()
        if now >= self._next_word:
            self._next_word = now + _SAY_EVERY
            waited = now - self._start
            say(sys.stderr, f"ggs: {what}: {waited:.0f} of {self}")

    def __str__(self) -> str:
        return f"{self._seconds:g} s (rendezvous_timeout)"

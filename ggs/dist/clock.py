"""Where the time of a step goes: loading, computing, selecting or averaging, sending, waiting.

Off unless someone measures. A phase interrupts the one around it, so that the phases add up to the
whole; on a GPU every border waits for the device, which is why only a step now and then is measured.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

Phase = Literal["loading", "computing", "selecting", "averaging", "sending", "waiting"]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""Getting the step's batches; forward, backward and local optimizer; selecting, coding and adding, or in
dense training copying gradients in and out instead; collectives with data; the agreement at a step's
start, where the fast workers wait for the slowest."""
ALWAYS: tuple[Phase, ...] = ("loading", "computing", "sending", "waiting")
"""What every step is said to have, be it for no time at all."""


class Clock:
    """Seconds by phase of one measured step."""

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {}
        """Of the last measured step, a phase that it did not come to left out; empty before."""
        self._device: torch.device | None = None
        self._phases: list[Phase] = []
        self._since = 0.0

    @contextmanager
    def measure(self, device: torch.device) -> Iterator[None]:
        """Inside, phases are measured; time in none of them is computing."""
        self.seconds = dict.fromkeys(ALWAYS, 0.0)
        self._device = device
        self._since = self._now()
        self._phases = ["computing"]
        try:
            yield
            self._charge()
        finally:
            self._phases = []

    def enter(self, phase: Phase) -> None:
        """Begin a phase inside the current one."""
        if self._phases:
            self._charge()
            self._phases.append(phase)

    def leave(self) -> None:
        """End the current phase; go on with the one around it."""
        if self._phases:
            self._charge()
            self._phases.pop()

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """A phase as a block."""
        self.enter(phase)
        try:
            yield
        finally:
            self.leave()

    def _charge(self) -> None:
        now, phase = self._now(), self._phases[-1]
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now

    def _now(self) -> float:
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

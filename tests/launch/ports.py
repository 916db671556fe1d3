"""Ports for tests that have to know them before anything listens there."""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free, and that the kernel gives to nobody who asks for any port.

    Of those that it gives, another process may get one before the test listens there.
    """
    first, last = map(int, _RANGE.read_text().split())
    ours = [*range(10_000, first), *range(last + 1, 65_536)]
    random.SystemRandom().shuffle(ours)  # not the same ones in two processes with one seed
    found: list[int] = []
    with ExitStack() as stack:
        for port in ours:
            if len(found) == count:
                break
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind(("", port))
            except OSError:
                continue
            found.append(port)
    assert len(found) == count, f"only {len(found)} ports outside {first}-{last} are free"
    return found

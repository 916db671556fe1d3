"""What the tests of parsers share: how many cases, how valid input is damaged, what a case may cost."""

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st

Edits = list[tuple[int, int, bytes]]

EDITS = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.integers(0, 20), st.binary(max_size=10)),
    min_size=1,
    max_size=4,
)
"""Changes for ``damaged``: where, how many bytes are taken out, what is put in."""


def cases(share: float) -> settings:
    """Settings of a test that costs more (or less) than others: a share of the profile's cases."""
    return settings(max_examples=max(1, round(settings.default.max_examples * share)))


def damaged(content: bytes, edits: Edits) -> bytes:
    """``content`` after ``edits``."""
    for place, length, inserted in edits:
        start = place % (len(content) + 1)
        content = content[:start] + inserted + content[start + length :]
    return content


@contextmanager
def bounded(seconds: float = 5.0, mebibytes: int = 256) -> Iterator[None]:
    """The block gets no more memory than this beyond what the process has, nor more processor time."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * os.sysconf("SC_PAGE_SIZE") + (mebibytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    started = time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    used = time.process_time() - started
    assert used < seconds, f"{used:.1f} s of processor time"

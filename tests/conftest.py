"""Fixtures that every test may use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.worker_pool import WorkerPool

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def workers() -> Iterator[WorkerPool]:
    """Real processes with a gloo group: ``workers.run(4, function, *args)``."""
    pool = WorkerPool()
    pool.start(4)
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Two test processes share two cores; more threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root folder."""
    return ROOT

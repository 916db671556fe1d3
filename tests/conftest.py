"""Fixtures that every test may use."""

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import docker
import docker.errors
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


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """The Docker engine of this machine."""
    client, reason = _docker_engine()
    if client is None:
        pytest.skip(reason)
    yield client
    client.close()


def _docker_engine() -> tuple[docker.DockerClient | None, str]:
    try:
        return docker.from_env(), ""
    except docker.errors.DockerException as error:
        reason = f"no Docker engine answers: {error}"
    # The docker library leaves the socket of a refused connection to the garbage collector, whose
    # warning would fail whichever test runs then.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    return None, reason

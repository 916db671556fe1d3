"""Fixtures around the fake OpenPAI server."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ggs.pai.client.clusters import Cluster
from ggs.pai.client.rest import Client
from ggs.pai.client.transport import Limits
from tests.pai.fake_server import TOKEN, FakePAI

# Quick to try again, but patient: a busy machine's answer must not be taken for silence.
QUICK = Limits(connect=30, read=30, answer=60, repetitions=2, backoff=0.01, longest_wait=0.5)

JOB = """\
# kept
protocolVersion: 2
name: {name}
type: job
jobRetryCount: 3
prerequisites:
  - {{type: dockerimage, name: image, uri: registry.example.org/ggs:1.0}}
parameters:
  epochs: 3
taskRoles:
  worker:
    instances: 2
    completion: {{minFailedInstances: 1}}
    dockerImage: image
    resourcePerInstance: {{cpu: 2, memoryMB: 4096, gpu: 0}}
    extraContainerOptions: {{shmMB: 512}}
    commands: ["echo <% $parameters.epochs %>"]
"""


@pytest.fixture(params=["openpai", "ltp"])
def server(request: pytest.FixtureRequest) -> Iterator[FakePAI]:
    """A server of either flavour."""
    with FakePAI(request.param) as fake:
        yield fake


@pytest.fixture
def openpai() -> Iterator[FakePAI]:
    """A server of OpenPAI 1.8.1."""
    with FakePAI() as fake:
        yield fake


@pytest.fixture
def client(server: FakePAI) -> Iterator[Client]:
    """Alice's client, quick to try again."""
    with Client(Cluster("test", server.url, "alice"), TOKEN, QUICK) as found:
        yield found


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 and its key, in one PEM file."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
    command += " -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out certificate.pem"
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "certificate.pem").read_text())
    return both


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, and no OpenPAI settings in the environment."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("PAI_TOKEN", "PAI_PASSWORD", "PAI_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path

"""The image, as a cluster and a person use it. Needs a Docker engine; GGS_TEST_IMAGE names the image."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from ggs import __version__
from ggs.extras import MODULES

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def image(engine: docker.DockerClient) -> str:
    name = os.environ.get("GGS_TEST_IMAGE")
    if not name:
        pytest.skip("GGS_TEST_IMAGE names no image")
    engine.images.get(name)
    return name


@pytest.fixture
def smoke(engine: docker.DockerClient, image: str) -> Iterator[Container]:
    """The image started as `docker run --network none IMAGE` starts it."""
    container = engine.containers.run(image, network_mode="none", detach=True)
    yield container
    container.remove(force=True)


def in_image(engine: docker.DockerClient, image: str, script: str, user: str = "") -> str:
    output: bytes = engine.containers.run(
        image, ["bash", "-c", script], network_mode="none", remove=True, user=user
    )
    return output.decode()


def test_smoke_test(smoke: Container) -> None:
    """Two workers train at 99.9 % sparsity without a network."""
    assert smoke.wait(timeout=200)["StatusCode"] == 0, smoke.logs().decode()
    log = smoke.logs().decode()
    assert "2 workers, GGS around adam" in log
    accuracy = re.search(r"top-1 +([\d.]+) % of 1,000", log)
    assert accuracy is not None
    assert float(accuracy[1]) > 80
    density = re.search(r"density ([\d.]+)%", log)
    assert density is not None
    assert float(density[1]) == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("training", [False, True], ids=["at once", "while it trains"])
def test_sigterm_stops_at_once(smoke: Container, training: bool) -> None:
    while training and b"ranks=0-1" not in smoke.logs():
        assert smoke.status in ("created", "running")
        time.sleep(0.5)
        smoke.reload()
    begin = time.monotonic()
    smoke.stop(timeout=30)  # SIGTERM; SIGKILL only after 30 s
    assert time.monotonic() - begin < 25
    assert smoke.wait()["StatusCode"] == 143
    smoke.reload()
    assert smoke.attrs["State"]["Pid"] == 0


@pytest.mark.parametrize("user", ["", "12345", "12345:54321"], ids=["root", "user", "user:group"])
def test_any_user_can_train(engine: docker.DockerClient, image: str, user: str) -> None:
    """With a cache that numba can write to, and a folder for results."""
    script = (
        "python entrypoint.py --model lenet5 --data mnist5k --steps 2 --workers 1 --threads 1 "
        "--device cpu && ls runs/*/ && find $NUMBA_CACHE_DIR -name '*.nbi' | wc -l"
    )
    lines = in_image(engine, image, script, user).splitlines()
    assert int(lines[-1]) > 0
    assert any("metrics" in line for line in lines)


def test_what_a_job_needs_is_there(engine: docker.DockerClient, image: str) -> None:
    script = "command -v bash find awk tee mkfifo sync wc tail ggs pai python tensorboard && pwd"
    assert in_image(engine, image, script).splitlines()[-1] == "/opt/ggs"
    script = (
        "cd /tmp && python -c 'import ggs; print(ggs.__file__)' && pai job validate "
        "/opt/ggs/pai_jobs/*.yaml > /dev/null && ggs --help > /dev/null && tensorboard --version_tb"
    )
    lines = in_image(engine, image, script, "12345").splitlines()
    assert lines[0] == "/opt/ggs/ggs/__init__.py"


def test_what_must_not_be_there(engine: docker.DockerClient, image: str) -> None:
    """Neither a compiler, nor anything where OpenPAI's runtime goes, nor files of a checkout."""
    tools = "for tool in gcc cc g++ c++ clang tcc ld make cmake; do command -v $tool; done; true"
    assert in_image(engine, image, tools) == ""
    places = "ls -d /usr/local/pai ~/.netrc ~/.ssh ~/.docker ~/.cache 2>/dev/null; ls -A runs"
    assert in_image(engine, image, places) == ""
    code = set(in_image(engine, image, "ls -A").split())
    assert {"entrypoint.py", "ggs", "pai_jobs", "examples"} <= code
    assert not code & {".git", ".venv", ".env", "tests", "benchmarks", "node_modules", ".ci"}


def test_triton_needs_no_compiler(engine: docker.DockerClient, image: str) -> None:
    """Its link to the CUDA driver is in its cache, for any user, and misses nothing but the driver."""
    code = (
        "import ctypes, os; from triton.backends.nvidia import driver as d; "
        "from triton.runtime.build import compile_so_from_file as c; "
        "print(so := c(os.path.join(d.dirname, 'driver.c'), 'cuda_utils', d.library_dirs(), "
        "d.include_dirs, d.libraries)); ctypes.PyDLL(so)"
    )
    output = in_image(engine, image, f'python -c "{code}" 2>&1 || true', "12345")
    assert output.startswith("/opt/cache/triton/")
    assert "libcuda.so.1: cannot open shared object file" in output.splitlines()[-1]


def test_its_configuration(engine: docker.DockerClient, image: str) -> None:
    config = engine.images.get(image).attrs["Config"]
    assert not config["Entrypoint"]
    assert config["WorkingDir"] == "/opt/ggs"
    assert "PYTHONUNBUFFERED=1" in config["Env"]
    assert not [name for name in config["Env"] if re.search("TOKEN|PASSWORD|SECRET|PROXY", name)]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.licenses"] == "MIT"


def test_a_code_change_rebuilds_only_the_last_layers(
    engine: docker.DockerClient, image: str
) -> None:
    """Everything heavy lies below what changes with the code."""
    history = engine.images.get(image).history()
    newest_first = [(entry["Size"], entry["CreatedBy"]) for entry in history]
    copied = next(i for i, (_, command) in enumerate(newest_first) if "COPY" in command)
    assert sum(size for size, _ in newest_first[: copied + 1]) < 30_000_000
    assert copied <= 1


def test_versions_are_locked(engine: docker.DockerClient, image: str, root: Path) -> None:
    lock = (root / "docker/requirements.txt").read_text()
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    frozen = in_image(engine, image, "pip freeze --all 2>/dev/null")
    found = {
        name.lower().replace("_", "-").replace(".", "-"): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)", frozen, re.MULTILINE)
    }
    assert {name: found.get(name) for name in locked} == locked
    assert {"torch", "torchvision"} <= found.keys()


def test_the_lock_has_what_the_package_asks_for(root: Path) -> None:
    lock = (root / "docker/requirements.txt").read_text()
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *(r for extra in MODULES for r in extras[extra])]
    names = {re.split(r"[\[<>=]", text)[0] for text in requirements} - {project["name"]}
    missing = {name for name in names if f"\n{name}==" not in lock}
    assert missing == {"torch", "torchvision"}  # the Dockerfile's own arguments

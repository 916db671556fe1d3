"""Jobs run as containers, with a real engine. Needs a Docker engine, and an image with bash.

GGS_TEST_BASE_IMAGE names any image with bash and coreutils, GGS_TEST_IMAGE the project's own.
"""

import gc
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from ggs.pai.local.docker_engine import LABEL
from tests.pai.local.jobs import Run, bash_job, job_with_image, pai, run_job

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

LATER = '[ "$FC_FRAMEWORK_ATTEMPT_ID" = 0 ] || exit 0'


def _image(engine: docker.DockerClient, variable: str) -> str:
    image = os.environ.get(variable)
    if not image:
        pytest.skip(f"{variable} names no image")
    engine.images.get(image)
    return image


@pytest.fixture
def bash_image(engine: docker.DockerClient) -> Iterator[str]:
    """An image with bash; afterwards no container or network of a local run may be left."""
    yield _image(engine, "GGS_TEST_BASE_IMAGE")
    assert leftovers(engine) == []


@pytest.fixture
def ggs_image(engine: docker.DockerClient) -> Iterator[str]:
    """The project's image; afterwards no container or network of a local run may be left."""
    yield _image(engine, "GGS_TEST_IMAGE")
    assert leftovers(engine) == []


def leftovers(engine: docker.DockerClient) -> list[str]:
    containers = engine.containers.list(all=True, filters={"label": LABEL})
    networks = engine.networks.list(filters={"label": LABEL})
    return [str(item.name) for item in [*containers, *networks]]


def run_in_containers(text: str, image: str, folder: Path, **options: object) -> Run:
    return run_job(job_with_image(text, image), folder, "docker", **options)


def smoke_job(root: Path, image: str) -> tuple[Path, list[str]]:
    return root / "pai_jobs/smoke.yaml", [f"image={image}"]


def test_two_containers_meet_on_their_own_network(bash_image: str, tmp_path: Path) -> None:
    """bash alone: one task listens through /dev/tcp's counterpart, the other connects to it."""
    listen = (
        'python3 -c \'import os, socket; e = os.environ; s = socket.create_server(("", '
        'int(e["PAI_worker_0_http_PORT"]))); print(s.accept()[1][0])\''
    )
    send = (
        'until (: >"/dev/tcp/$PAI_HOST_IP_worker_0/$PAI_PORT_LIST_worker_0_http") 2>/dev/null; '
        "do sleep 0.05; done"
    )
    job = bash_job(f'if [ "$PAI_TASK_INDEX" = 0 ]; then env; {listen}; else {send}; fi')
    result = run_in_containers(job, bash_image, tmp_path)
    assert result.code == 0
    found = result.variables(0, "worker", 0)
    assert found["PAI_HOST_IP_worker_0"] != found["PAI_HOST_IP_worker_1"]
    assert result.log(0, "worker", 0).splitlines()[-1] == found["PAI_HOST_IP_worker_1"]


@pytest.mark.parametrize(
    ("commands", "retries", "code", "attempts"),
    [
        ([LATER, "exit 3"], 1, 0, 2),
        (["exit 1"], 0, 1, 1),
        (["exit 132"], 5, 1, 1),
        ([LATER, "kill -9 1; kill -9 $$"], 0, 0, 2),
    ],
    ids=["exit 3", "no retries", "132", "SIGKILL"],
)
def test_the_reaction_to_a_failure(
    bash_image: str, tmp_path: Path, commands: list[str], retries: int, code: int, attempts: int
) -> None:
    result = run_in_containers(bash_job(*commands, retries=retries), bash_image, tmp_path)
    assert (result.code, result.attempts) == (code, attempts)


def test_a_killed_container_restarts_all(bash_image: str, tmp_path: Path) -> None:
    job = bash_job("env", LATER, "sleep 1000")
    result = run_in_containers(job, bash_image, tmp_path, kills=["worker:1@3"])
    assert (result.code, result.attempts) == (0, 2)
    before, after = (result.variables(attempt, "worker", 0) for attempt in (0, 1))
    assert before["PAI_PORT_LIST_worker_1_http"] != after["PAI_PORT_LIST_worker_1_http"]
    assert before["FC_FRAMEWORK_UID"] == after["FC_FRAMEWORK_UID"]


def test_limits_mounts_and_secrets(
    engine: docker.DockerClient, bash_image: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    job = bash_job(
        "pwd; df -m /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2",
        "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || :",
        "cat /usr/local/pai/secrets/secrets.yaml",
        "echo '<% $secrets.word %>'",
        "readlink /proc/self/fd/0",
        "echo written > /mnt/data/file",
        instances=1,
        secrets={"word": "p&w"},
        extras={"storages": [{"name": "data"}]},
        role={"extraContainerOptions": {"shmMB": 48}},
    )
    result = run_in_containers(job, bash_image, tmp_path / "run", storages=[f"data={data}"])
    assert result.code == 0
    workdir = engine.images.get(bash_image).attrs["Config"]["WorkingDir"] or "/"
    assert result.log(0, "worker", 0).splitlines() == [
        workdir,
        "48",
        str(256 * 1024 * 1024),
        "word: p&w",
        "p&amp;w",
        "/dev/null",
    ]
    assert (data / "file").read_text() == "written\n"


def test_too_much_memory(bash_image: str, tmp_path: Path) -> None:
    job = bash_job("head -c 600m /dev/zero | tail | wc -c", retries=3, instances=1)
    result = run_in_containers(job, bash_image, tmp_path)
    assert (result.code, result.attempts) == (1, 1)


def test_entrypoint_and_user_of_the_image(
    engine: docker.DockerClient, bash_image: str, tmp_path: Path
) -> None:
    """ENTRYPOINT and CMD are not run; ENV, USER and WORKDIR stay."""
    dockerfile = (
        f"FROM {bash_image}\nENV OF_IMAGE='a b'\nWORKDIR /somewhere\nUSER 12345\n"
        'ENTRYPOINT ["/bin/false"]\nCMD ["nothing"]\n'
    )
    (tmp_path / "Dockerfile").write_text(dockerfile)
    tag = "ggs-test-user:1"
    engine.images.build(path=str(tmp_path), tag=tag, rm=True)
    try:
        job = bash_job('echo "$(id -u) $PWD $PAI_WORK_DIR $OF_IMAGE"', instances=1)
        result = run_in_containers(job, tag, tmp_path / "run")
        assert result.code == 0
        assert result.log(0, "worker", 0) == "12345 /somewhere /somewhere a b\n"
    finally:
        engine.images.remove(tag)


@pytest.mark.usefixtures("engine")
def test_an_image_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = bash_job("true").replace("bash-image:1", "127.0.0.1:1/none:1")
    assert run_job(job, tmp_path, "docker").code == 1
    assert "exit code 254, OpenPAI never retries it" in capsys.readouterr().err


# The docker library leaves the socket of a failed connection to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "host",
    [
        "unix:///nowhere/no.sock",
        *("tcp://127.0.0.1:1", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:notaport"),
        *(":notaport", "tcp://", "http://[::1", "tcp://a b:1", "ftp://127.0.0.1:1", "nonsense"),
    ],
)
def test_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    assert run_job(bash_job("true"), tmp_path, "docker").code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"no Docker engine answers at DOCKER_HOST={host} (" in line
    assert "use --engine process" in line
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_certificates_of_an_engine_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("none")
    for name, value in {
        "DOCKER_HOST": "tcp://127.0.0.1:1",
        "DOCKER_TLS_VERIFY": "1",
        "DOCKER_CERT_PATH": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    assert run_job(bash_job("true"), tmp_path, "docker").code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no Docker engine answers" in line
    gc.collect()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(
    engine: docker.DockerClient, bash_image: str, tmp_path: Path, number: signal.Signals
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(job_with_image(bash_job("echo up; sleep 1000"), bash_image))
    with pai("job", "run-local", str(job), "--folder", str(tmp_path / "run")) as process:
        assert process.stdout is not None
        while not process.stdout.readline().endswith("| up\n"):
            assert process.poll() is None
        assert len(leftovers(engine)) == 3
        process.send_signal(number)
        rest = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + number, rest
    assert leftovers(engine) == []


def test_keep(
    engine: docker.DockerClient,
    bash_image: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is kept can be looked at, and is removed by the command that is printed."""
    job = bash_job("echo hello > /file", instances=1)
    assert run_in_containers(job, bash_image, tmp_path, keep=True).code == 0
    assert len(leftovers(engine)) == 2
    printed = capsys.readouterr().out.splitlines()[-1]
    _, separator, command = printed.partition("kept: ")
    assert separator
    subprocess.run(["bash", "-c", command], check=True, capture_output=True)


def test_smoke_job(ggs_image: str, root: Path, tmp_path: Path) -> None:
    """Two containers, one training over their own network."""
    file, settings = smoke_job(root, ggs_image)
    arguments = ["--folder", str(tmp_path), "--set", settings[0], "--set", "epochs=2"]
    with pai("job", "run-local", str(file), *arguments) as process:
        output = process.communicate()[0]
    assert process.returncode == 0, output
    assert "2 workers" in (tmp_path / "attempt-0/worker-0.log").read_text()
    assert "job SUCCEEDED after 1 attempt" in output, output


def test_smoke_job_with_a_killed_worker(ggs_image: str, root: Path, tmp_path: Path) -> None:
    file, settings = smoke_job(root, ggs_image)
    settings.append("epochs=2")
    result = run_job(file.read_text(), tmp_path, "docker", settings=settings, kills=["worker:1@5"])
    assert (result.code, result.attempts) == (0, 2)
    assert "2 workers" in result.log(1, "worker", 0)


def test_the_image_runs_ggs_env(ggs_image: str, tmp_path: Path) -> None:
    """A job's task knows from its variables alone who it is."""
    code = (
        "import json, os; from ggs.launch.environment import PAIEnvironment as E; "
        "e = E.from_mapping(os.environ); print(json.dumps([e.role.name, e.index]))"
    )
    result = run_in_containers(bash_job(f"python -c '{code}'"), ggs_image, tmp_path)
    assert result.code == 0
    assert json.loads(result.log(0, "worker", 1)) == ["worker", 1]


def test_a_killed_worker_resumes_from_the_storage(ggs_image: str, tmp_path: Path) -> None:
    """The training that is killed after its second checkpoint does not start over."""
    train = (
        "python $PAI_WORK_DIR/entrypoint.py --model lenet5 --data mnist5k --steps 400 --workers 1 "
        "--threads 1 --device cpu --backend gloo --checkpoint-dir /mnt/results/checkpoints "
        "--checkpoint-every '40 steps' & training=$!"
    )
    kill = (
        'if [ "$FC_FRAMEWORK_ATTEMPT_ID$PAI_TASK_INDEX" = 01 ]; then '
        "until [ $(ls -d /mnt/results/checkpoints/step-* 2>/dev/null | wc -l) -ge 2 ]; "
        "do sleep 0.1; done; kill -9 $$; fi"
    )
    resources = {"cpu": 1, "memoryMB": 2048, "gpu": 0, "ports": {"rendezvous": 2}}
    job = bash_job(
        train,
        kill,
        "wait $training",
        role={"resourcePerInstance": resources},
        extras={"storages": [{"name": "results"}]},
    )
    result = run_in_containers(job, ggs_image, tmp_path)
    assert (result.code, result.attempts) == (0, 2)
    resumed = re.search(r"resuming after step (\d+)", result.log(1, "worker", 0))
    assert resumed is not None
    assert int(resumed[1]) >= 40

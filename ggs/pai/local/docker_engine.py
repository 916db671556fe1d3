"""Tasks as containers on a private bridge network, each at an address of its own."""

import io
import os
import tarfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import docker
import docker.errors
import docker.types
import requests
from docker.models.containers import Container

from ggs.errors import ConfigurationError
from ggs.pai.job.model import DockerImage
from ggs.pai.job.template import render
from ggs.pai.local.engine import CannotRun, Exited, Launch, Output, Report
from ggs.pai.local.runtime_scripts import environment_script
from ggs.pai.local.task_environment import TaskId
from ggs.text import shorten

LABEL = "ggs.local-openpai"
"""On every container and network of a local run; its value names the run."""

RUNTIME_DIR = "/usr/local/pai"
DEFAULT_SHM_MB = 512


@dataclass
class _RunningContainer:
    container: Container
    follower: threading.Thread = field(default_factory=threading.Thread)


class DockerEngine:
    """Runs tasks in containers: the image's ENV, USER and WORKDIR stay, ENTRYPOINT and CMD do not."""

    def __init__(
        self, report: Report, *, run: str, tasks: int, secrets: Mapping[str, object], keep: bool
    ) -> None:
        """``run`` names containers and network; ``tasks`` is how many may run at a time.

        ``secrets`` are the job's, which the login of a registry may refer to.
        """
        self._report = report
        self._secrets = secrets
        self._run = run
        self._keep = keep
        self._running: dict[TaskId, _RunningContainer] = {}
        try:
            # Each task holds one connection for its output.
            self._client = docker.from_env(max_pool_size=2 * tasks + 8)
            self._client.ping()
        # a ValueError: docker parses DOCKER_HOST with urllib, whose own complaint comes through;
        # an OSError: certificates in DOCKER_CERT_PATH that cannot be read
        except (docker.errors.DockerException, OSError, ValueError) as error:
            host = os.environ.get("DOCKER_HOST")
            raise ConfigurationError(
                f"no Docker engine answers{f' at DOCKER_HOST={shorten(host, 100)}' if host else ''} "
                f"({_one_line(error)}): {'correct it, ' if host else ''}start it, or use --engine "
                "process"
            ) from None
        self._network = f"local-openpai-{run}"

    def prepare(self, images: Sequence[DockerImage]) -> None:
        for image in images:
            try:
                self._client.images.get(image.uri)
            except docker.errors.ImageNotFound:
                self._pull(image)

    def _pull(self, image: DockerImage) -> None:
        login = None
        if image.auth is not None:
            context = {"$secrets": self._secrets}
            login = {
                "username": render(image.auth.username or "", context),
                "password": render(image.auth.password or "", context),
            }
        try:
            self._client.images.pull(image.uri, auth_config=login)
        except (docker.errors.APIError, requests.RequestException) as error:
            raise CannotRun(
                f"image {image.uri} is neither here nor can it be pulled ({_one_line(error)}): "
                "exit code 254, OpenPAI never retries it; build or push the image first"
            ) from None

    def open(self) -> None:
        self._client.networks.create(self._network, driver="bridge", labels={LABEL: self._run})

    def start(self, launch: Launch) -> str:
        container = self._create(launch)
        self._running[launch.task] = running = _RunningContainer(container)
        container.put_archive("/", _archive(launch.files, mode=0o755))
        try:
            container.start()
        except docker.errors.APIError as error:
            raise CannotRun(
                f"{launch.task} does not start ({_one_line(error)}): an image for OpenPAI needs "
                "/bin/bash; exit code -1203, never retried"
            ) from None
        running.follower = threading.Thread(
            target=self._follow, args=(launch.task, container), daemon=True
        )
        running.follower.start()
        container.reload()
        networks: dict[str, Any] = container.attrs["NetworkSettings"]["Networks"]
        address: str = networks[self._network]["IPAddress"]
        if not address:
            raise CannotRun(f"{launch.task} ended before it had an address: see its log")
        return address

    def _create(self, launch: Launch) -> Container:
        asked = launch.role.resource
        shm_mb = launch.role.extra_container_options.shm_mb or DEFAULT_SHM_MB
        devices = []
        if launch.gpus:
            ids = [str(index) for index in launch.gpus]
            devices = [docker.types.DeviceRequest(device_ids=ids, capabilities=[["gpu"]])]
        name = f"{launch.task.role}-{launch.task.index}"
        return self._client.containers.create(
            launch.image.uri,
            entrypoint=["/bin/bash", f"{RUNTIME_DIR}/runtime", launch.token],
            name=f"local-openpai-{self._run}-{name}-{launch.attempt}",
            hostname=name.replace("_", "-"),
            labels={LABEL: self._run},
            network=self._network,
            mem_limit=f"{asked.memory_mb}m",
            memswap_limit=f"{asked.memory_mb}m",
            nano_cpus=int(min(asked.cpu, os.cpu_count() or asked.cpu) * 1e9),
            shm_size=f"{shm_mb}m",
            device_requests=devices,
            volumes={
                str(folder): {"bind": target, "mode": "rw"}
                for target, folder in launch.mounts.items()
            },
        )

    def _follow(self, task: TaskId, container: Container) -> None:
        rest = b""
        for chunk in container.logs(stream=True, follow=True):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._report(Output(task, line.decode(errors="replace")))
        if rest:
            self._report(Output(task, rest.decode(errors="replace")))
        code = container.wait()["StatusCode"]
        container.reload()
        self._report(Exited(task, code, out_of_memory=container.attrs["State"]["OOMKilled"]))

    def work_dir(self, launch: Launch) -> str:
        config: dict[str, Any] = self._client.images.get(launch.image.uri).attrs["Config"]
        return config.get("WorkingDir") or "/"

    def runtime_dir(self, launch: Launch) -> str:
        return RUNTIME_DIR

    def release(self, launch: Launch, environment: Mapping[str, str]) -> None:
        # A tar is unpacked in its order: the barrier opens after the environment is there.
        files = {"runtime.d/runtime_env.sh": environment_script(environment), "go": ""}
        with suppress(docker.errors.NotFound, docker.errors.APIError):  # it may have been killed
            self._running[launch.task].container.put_archive("/", _archive(files, mode=0o644))

    def kill(self, task: TaskId) -> None:
        with suppress(docker.errors.NotFound, docker.errors.APIError):  # it has ended
            self._running[task].container.kill("SIGKILL")

    def end_attempt(self) -> None:
        for task in self._running:
            self.kill(task)
        for running in self._running.values():
            if running.follower.ident is not None:
                running.follower.join()
            if not self._keep:
                with suppress(docker.errors.NotFound):
                    running.container.remove(force=True, v=True)
        self._running.clear()

    def close(self) -> None:
        self.end_attempt()
        if not self._keep:
            mine: dict[str, str | list[str] | bool] = {"label": f"{LABEL}={self._run}"}
            for container in self._client.containers.list(all=True, filters=mine):
                container.remove(force=True, v=True)
            for network in self._client.networks.list(filters=mine):
                network.remove()
        self._client.close()

    def how_to_remove(self) -> str:
        mine = f"--filter label={LABEL}={self._run}"
        return f"kept: docker rm -f $(docker ps -aq {mine}) && docker network rm {self._network}"


def _archive(files: Mapping[str, str], *, mode: int) -> bytes:
    """A tar of ``files`` below the runtime's folder, which anyone may write to, as a pod's volume."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folders = {RUNTIME_DIR, *(os.path.dirname(f"{RUNTIME_DIR}/{name}") for name in files)}
        for folder in sorted(folders):
            entry = tarfile.TarInfo(folder.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(entry)
        for name, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"{RUNTIME_DIR}/{name}".lstrip("/"))
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _one_line(error: Exception) -> str:
    explanation = getattr(error, "explanation", None) or str(error)
    return shorten(" ".join(str(explanation).split()), 200)

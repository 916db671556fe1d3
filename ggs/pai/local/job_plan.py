"""A job and the options of the person who runs it, checked against each other and this machine."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ggs.errors import ConfigurationError
from ggs.launch.pai_names import role_key
from ggs.pai.job.document import Document, load
from ggs.pai.job.edit import edit
from ggs.pai.job.model import Job
from ggs.pai.job.stored import mask, read_in_container
from ggs.pai.local.options import Kill, LocalOptions
from ggs.pai.local.task_environment import TaskId, port_labels, tasks_of
from ggs.pai.validate import validate
from ggs.text import name_and_value


@dataclass(frozen=True)
class JobPlan:
    """What every attempt of a local run has in common."""

    job: Job
    options: LocalOptions
    folder: Path
    kills: list[Kill]
    mounts: Mapping[str, Path]
    """Folder of this machine by mount point."""
    gpus: Mapping[TaskId, range]
    """The GPUs of each task, by index on this machine."""
    stored: object
    """The job file as OpenPAI's init container reads it."""
    notes: list[str]
    """What OpenPAI would not accept, and what is different here, in sentences."""


def make_plan(source: Document | Path | str, options: LocalOptions) -> JobPlan:
    """Read a job and settle everything that can be settled before its first attempt.

    Raises:
        ConfigurationError: the job file or an option is wrong.
    """
    settings = dict(name_and_value(text, "--set") for text in options.settings)
    document = edit(source if isinstance(source, Document) else load(source), settings)
    job = Job.from_document(document)
    findings = validate(document, target="openpai")
    if options.gpus is not None:
        for role in job.task_roles.values():
            role.resource.gpu = min(role.resource.gpu, 1) * options.gpus
    _check_roles(job)
    started = time.strftime("%Y%m%d-%H%M%S")
    folder = (options.folder or Path("runs", "local", f"{job.name}-{started}")).resolve()
    notes = [
        f"line {finding.line}, {finding.message}: on OpenPAI {finding.consequence}; {finding.fix}"
        for finding in findings
        if finding.severity == "error"
    ]
    notes += _differences(job, options)
    gpus = _share_gpus(job, len(list(Path("/dev").glob("nvidia[0-9]*"))))
    mounts = _mounts(job, options, folder)
    if mounts and options.engine == "process":
        listed = ", ".join(f"{target} as {path}" for target, path in mounts.items())
        notes.append(f"nothing is mounted; the commands see {listed}")
    stored = read_in_container(mask(document.text))
    return JobPlan(job, options, folder, _kills(job, options), mounts, gpus, stored, notes)


def _check_roles(job: Job) -> None:
    """Refuse what has no meaningful environment on a cluster either."""
    known: dict[str, str] = {}
    for name, role in job.task_roles.items():
        job.image(name)
        short = role_key(name)
        if short in known:
            raise ConfigurationError(
                f"the roles {known[short]} and {name} are both {short!r} to OpenPAI: rename one"
            )
        known[short] = name
        for label, count in port_labels(role).items():
            if count < 1:
                raise ConfigurationError(
                    f"taskRoles.{name}.resourcePerInstance.ports.{label}: {count}: give 1 or more"
                )


def _kills(job: Job, options: LocalOptions) -> list[Kill]:
    kills = options.parsed_kills()
    for kill in kills:
        if TaskId(kill.role, kill.index) not in tasks_of(job):
            known = ", ".join(map(str, tasks_of(job)))
            raise ConfigurationError(
                f"--kill {kill.role}:{kill.index}: the job has no such task, only {known}"
            )
    return kills


def _mounts(job: Job, options: LocalOptions, folder: Path) -> dict[str, Path]:
    given = options.parsed_storages()
    storages = {storage.name: storage for storage in job.extras.storages or []}
    for name in given:
        if name not in storages:
            known = ", ".join(storages) or "none"
            raise ConfigurationError(f"--storage {name}: the job's extras.storages has {known}")
    return {
        storage.target: given.get(name, folder / "storages" / name)
        for name, storage in storages.items()
    }


def _share_gpus(job: Job, available: int) -> dict[TaskId, range]:
    """Give every task its own GPUs: two workers on one GPU would not be what a cluster does."""
    gpus: dict[TaskId, range] = {}
    taken = 0
    for task in tasks_of(job):
        wanted = job.task_roles[task.role].resource.gpu
        gpus[task] = range(taken, taken + wanted)
        taken += wanted
    if taken > available:
        raise ConfigurationError(
            f"the tasks ask for {taken} GPUs in all, this machine has {available}: "
            "--gpus 0 runs them on the CPU, --gpus N gives each task N"
        )
    return gpus


def _differences(job: Job, options: LocalOptions) -> list[str]:
    notes = []
    if job.extras.gang_allocation is False:
        notes.append(
            "gangAllocation is false: here tasks still wait for all addresses, and taskRetryCount "
            "is not used"
        )
    if options.engine == "process":
        notes.append("no container: the image is not used, cpu, memoryMB and shmMB are not limited")
    return notes

"""One attempt of a job: from the barrier to the end that its completion policy decides."""

import queue
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from ggs.pai.local.display import FAILED, KILLED, RUNNING, SUCCEEDED, WAITING, Display
from ggs.pai.local.engine import CannotRun, Engine, Exited, Launch, Output
from ggs.pai.local.exit_spec import SEARCHED_LOG_BYTES, classify
from ggs.pai.local.job_plan import JobPlan
from ggs.pai.local.policy import AttemptResult, Ended, judge
from ggs.pai.local.process_engine import port_is_free
from ggs.pai.local.runtime_scripts import USER_SCRIPT_ENDED, task_files
from ggs.pai.local.task_environment import (
    Attempt,
    Pod,
    TaskId,
    task_environment,
    task_ports,
    tasks_of,
)

_LINGER_NOTE_SECONDS = 3.0


class StopRequested(Exception):
    """A signal asks the whole run to end."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


@dataclass(frozen=True)
class StopSignal:
    """The event that a signal becomes."""

    signal_number: int


Events = queue.SimpleQueue[Output | Exited | StopSignal]


@dataclass
class AttemptRun:
    """Runs attempt ``number``: ``run()`` returns how it ended, with every task gone."""

    plan: JobPlan
    engine: Engine
    display: Display
    events: Events
    job_uid: str
    number: int
    _token: str = field(default_factory=lambda: f"pai-local-{uuid.uuid4().hex}")
    _launches: dict[TaskId, Launch] = field(default_factory=dict)
    _logs: dict[TaskId, TextIO] = field(default_factory=dict)
    _ended: list[Ended] = field(default_factory=list)
    _lingering: dict[TaskId, float] = field(default_factory=dict)
    """When the script of a task ended whose output somebody still holds."""
    _noted: set[TaskId] = field(default_factory=set)

    @property
    def folder(self) -> Path:
        """Where this attempt's logs lie."""
        return self.plan.folder / f"attempt-{self.number}"

    def run(self) -> AttemptResult:
        """Run every task until the completion policy is met; then kill the others, as OpenPAI does.

        Raises:
            CannotRun: OpenPAI would not get the job to an end either.
            StopRequested: a signal came.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start()
            result = self._follow()
        finally:
            self.engine.end_attempt()
            self._take_last_words()
            for log in self._logs.values():
                log.close()
        self._mark_the_killed()
        return result

    def _start(self) -> None:
        """Start every task; when all addresses are known, let them all go."""
        job = self.plan.job
        pods = {}
        for task in tasks_of(job):
            self.display.change(task, WAITING)
            self._logs[task] = (self.folder / f"{task.role}-{task.index}.log").open("w")
            launch = self._launch(task)
            self._launches[task] = launch
            address = self.engine.start(launch)
            pods[task] = Pod(address, launch.pod_uid)
            self._handle_waiting_events()
        attempt = Attempt(self.job_uid, self.number, pods)
        for task, launch in self._launches.items():
            environment = task_environment(
                job,
                task,
                attempt,
                user=self.plan.options.user,
                work_dir=self.engine.work_dir(launch),
                runtime_dir=self.engine.runtime_dir(launch),
            )
            self.engine.release(launch, environment)
            known = self.display.tasks[task]
            known.address, known.attempts = pods[task].address, self.number + 1
            self.display.change(task, RUNNING)

    def _launch(self, task: TaskId) -> Launch:
        job = self.plan.job
        files, notes = task_files(job, self.plan.stored, task, job.render_commands(task.role))
        if self.number == 0:
            for note in notes:
                self.display.note(note)
        return Launch(
            task=task,
            role=job.task_roles[task.role],
            image=job.image(task.role),
            attempt=self.number,
            pod_uid=self._pod_uid(task),
            files=files,
            mounts=self.plan.mounts,
            gpus=self.plan.gpus[task],
            token=self._token,
        )

    def _pod_uid(self, task: TaskId) -> str:
        """A new identifier, and so new ports; one whose ports are equal or taken is passed over."""
        role = self.plan.job.task_roles[task.role]
        while True:
            uid = str(uuid.uuid4())
            ports = [port for numbers in task_ports(role, uid).values() for port in numbers]
            in_containers = self.plan.options.engine == "docker"
            if len(set(ports)) == len(ports) and (
                in_containers or all(port_is_free("127.0.0.1", port) for port in ports)
            ):
                return uid
            self.display.note(
                f"{task}: its ports collide; OpenPAI would end the attempt with 253 and retry, "
                "uncounted"
            )

    def _follow(self) -> AttemptResult:
        started = time.monotonic()
        kills = sorted(self.plan.kills, key=lambda kill: kill.seconds) if self.number == 0 else []
        while True:
            self._handle_waiting_events(wait=0.1)
            if result := judge(self.plan.job, self._ended):
                return result
            while kills and time.monotonic() - started >= kills[0].seconds:
                kill = kills.pop(0)
                task = TaskId(kill.role, kill.index)
                self.display.note(f"{task}: SIGKILL after {kill.seconds:g} s, as asked")
                self.engine.kill(task)
            self._watch_lingering()

    def _handle_waiting_events(self, wait: float = 0.0) -> None:
        """Take what has happened since the last call, waiting up to ``wait`` seconds for a first."""
        while True:
            try:
                event = self.events.get(timeout=wait) if wait else self.events.get_nowait()
            except queue.Empty:
                return
            wait = 0.0
            if isinstance(event, StopSignal):
                raise StopRequested(event.signal_number)
            if isinstance(event, Output):
                self._handle_output(event)
            else:
                self._handle_exit(event)

    def _handle_output(self, event: Output) -> None:
        line = event.line
        if line.endswith(f"{self._token} {USER_SCRIPT_ENDED}"):
            self._lingering[event.task] = time.monotonic()
            line = line[: line.index(self._token)]
            if not line:
                return
        self._logs[event.task].write(line + "\n")
        self.display.output(event.task, line)

    def _handle_exit(self, event: Exited) -> None:
        task = event.task
        self._lingering.pop(task, None)
        self._logs[task].flush()
        verdict = classify(event.code, self._tail_of_log(task), out_of_memory=event.out_of_memory)
        self._ended.append(Ended(task, verdict))
        known = self.display.tasks[task]
        shown = "" if verdict.code == verdict.user_code else f" ({verdict.code})"
        known.code = f"{verdict.user_code}{shown}"
        known.conclusion = (
            "succeeded"
            if verdict.succeeded
            else f"{verdict.reason}: OpenPAI {verdict.reaction.value}"
        )
        self.display.change(task, SUCCEEDED if verdict.succeeded else FAILED)

    def _tail_of_log(self, task: TaskId) -> str:
        with Path(self._logs[task].name).open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - SEARCHED_LOG_BYTES))
            return log.read().decode(errors="replace")

    def _watch_lingering(self) -> None:
        """Say so when a script has ended and a process that it left behind keeps the task alive."""
        limit = self.plan.options.linger_seconds
        for task, since in self._lingering.items():
            seconds = time.monotonic() - since
            if seconds >= limit:
                raise CannotRun(
                    f"{task}: its script ended {seconds:.0f} s ago, but a background process still "
                    "holds its output: OpenPAI 1.8.1 keeps the task RUNNING until that ends; wait "
                    "for it or kill it at the script's end"
                )
            if seconds >= _LINGER_NOTE_SECONDS and task not in self._noted:
                self._noted.add(task)
                self.display.note(
                    f"{task}: its script has ended, but a background process holds its output; "
                    f"OpenPAI 1.8.1 keeps the task RUNNING, LTP ends it; waiting {limit:g} s"
                )

    def _take_last_words(self) -> None:
        """What killed tasks printed before their end; nothing of this attempt comes after it."""
        while not self.events.empty():
            event = self.events.get()
            if isinstance(event, StopSignal):
                raise StopRequested(event.signal_number)
            if isinstance(event, Output):
                self._handle_output(event)

    def _mark_the_killed(self) -> None:
        over = {end.task for end in self._ended}
        for task in self._launches:
            if task not in over:
                known = self.display.tasks[task]
                known.code = "-220"
                known.conclusion = "killed, because the attempt was over"
                self.display.change(task, KILLED)

"""Runs a whole job here: attempts, failures, retries and the end, as OpenPAI would decide them."""

import queue
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ggs.errors import GGSError
from ggs.pai.job.document import Document
from ggs.pai.job.stored import InitFailure
from ggs.pai.local.attempt import AttemptRun, Events, StopRequested, StopSignal
from ggs.pai.local.display import Display, complain, say
from ggs.pai.local.engine import CannotRun, Engine
from ggs.pai.local.job_plan import JobPlan, make_plan
from ggs.pai.local.options import LocalOptions
from ggs.pai.local.policy import decide_retry
from ggs.pai.local.process_engine import ProcessEngine
from ggs.pai.local.task_environment import tasks_of
from ggs.signals import handled

SUCCEEDED, FAILED, USAGE = 0, 1, 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(job: Path | str | Document, options: LocalOptions) -> int:
    """Run a job file (a path), a job's YAML text (a string) or one that is already parsed, here.

    Returns 0 when OpenPAI would call the job SUCCEEDED, 1 for FAILED, 2 when the file or an option is
    wrong, and 128 plus its number after a signal. Whatever happens, no container, network or process
    is left behind, unless ``options.keep``.
    """
    events: Events = queue.SimpleQueue()
    try:
        plan = make_plan(job, options)
        engine = _engine(plan, events)
        with _signals_as_events(events):
            try:
                engine.open()
                return _run(plan, engine, events)
            finally:
                engine.close()
                if options.keep:
                    say(engine.how_to_remove())
    except InitFailure as error:
        complain(f"OpenPAI's init container fails, on every attempt: {error}")
        complain("job FAILED")
        return FAILED
    except CannotRun as error:
        complain(str(error))
        complain("job FAILED")
        return FAILED
    except GGSError as error:
        complain(str(error))
        return USAGE
    except StopRequested as stopped:
        name = signal.Signals(stopped.signal_number).name
        complain(f"{name}: the job is stopped")
        return 128 + stopped.signal_number
    except KeyboardInterrupt:  # before anything was started
        return 128 + signal.SIGINT


def _engine(plan: JobPlan, events: Events) -> Engine:
    """The engine asked for, with every image there; nothing to clean up yet."""
    keep = plan.options.keep
    engine: Engine
    if plan.options.engine == "docker":
        from ggs.pai.local.docker_engine import DockerEngine  # processes need no docker package

        engine = DockerEngine(
            events.put,
            run=uuid.uuid4().hex[:8],
            tasks=len(tasks_of(plan.job)),
            secrets=plan.job.secrets,
            keep=keep,
        )
    else:
        engine = ProcessEngine(events.put, keep=keep)
    try:
        engine.prepare([plan.job.image(role) for role in plan.job.task_roles])
    except BaseException:
        engine.close()
        raise
    return engine


def _run(plan: JobPlan, engine: Engine, events: Events) -> int:
    for folder in plan.mounts.values():
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o777)  # an image may run as any user
    job_uid = str(uuid.uuid4())
    counted = number = 0
    with Display(tasks_of(plan.job)) as display:
        for note in plan.notes:
            display.note(note)
        while True:
            result = AttemptRun(plan, engine, display, events, job_uid, number).run()
            if result.succeeded:
                break
            decision = decide_retry(
                plan.job, result, counted, number + 1, plan.options.max_attempts
            )
            display.note(decision.sentence)
            if not decision.retry:
                break
            counted, number = decision.counted, number + 1
            display.note(f"attempt {number} starts: all tasks, new addresses, new ports")
    display.summary(
        f"job {'SUCCEEDED' if result.succeeded else 'FAILED'} after {number + 1} "
        f"attempt{'s' * (number > 0)} ({result.explanation}); logs in {plan.folder}"
        + (f", what the tasks wrote in {Path.cwd()}" if plan.options.engine == "process" else "")
    )
    return SUCCEEDED if result.succeeded else FAILED


@contextmanager
def _signals_as_events(events: Events) -> Iterator[None]:
    """Turn signals into events, so that none can interrupt the making of a container half-way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    with handled(_SIGNALS, lambda number, _: events.put(StopSignal(number))):
        yield

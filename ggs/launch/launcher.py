"""Start a node's workers with torch's elastic agent, watch over them, end with the right exit code.

    sys.exit(guard(lambda: start(LaunchOptions(workers=2), train, (config,))))

torch's agent starts and stops the processes and gives them RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and MASTER_PORT. What it does not do is done here: ranks in the
order of OpenPAI's tasks, a failure that all tasks learn of at once with its cause, and no orphans.
Workers are never restarted in place: OpenPAI restarts the job, with new ports and addresses.
"""

import logging
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggs.errors import GGSError
from ggs.extras import extras_named
from ggs.launch import exit_codes, failures, pai_names
from ggs.launch.coordinator import Coordinator
from ggs.launch.endpoint import doubt, variables_of_a_worker
from ggs.launch.environment import PAIEnvironment
from ggs.launch.failures import Failure
from ggs.launch.member import Member
from ggs.launch.placement import (
    Devices,
    LaunchOptions,
    Placement,
    is_worker,
    place,
    worker_variables,
)
from ggs.launch.processes import ProcessTree, Stopped, stop_on_signals
from ggs.launch.worker_process import Payload
from ggs.output import say, unwritten

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerSpec
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from ggs.launch.agent import Agent
    from ggs.launch.rendezvous import Rendezvous

MONITOR_SECONDS = 0.1
"""How often the agent looks after its workers and the other nodes."""


def guard(run: Callable[[], int]) -> int:
    """Run a program's body. Returns its exit code: of errors and signals too, which it reports in one line.

    Outside OpenPAI the codes are a shell's: see :mod:`ggs.launch.exit_codes`.
    Whatever is neither a GGSError nor a signal is a bug: its traceback comes before the line.
    """
    with stop_on_signals():
        try:
            with extras_named("train"):
                return _run_and_show(run)
        except GGSError as error:
            _print(f"ggs: {error}")
            return exit_codes.for_reader(exit_codes.of_error(error), os.environ)
        except Stopped as stop:
            _print(f"ggs: stopped by {stop}")
            return exit_codes.of_signal(stop.number, os.environ)
        except Exception as error:
            code = exit_codes.of_error(error)
            _print(str(Failure(_where(), traceback.format_exc().rstrip(), code, time.time())))
            return exit_codes.for_reader(code, os.environ)


def _run_and_show(run: Callable[[], int]) -> int:
    """Run a program's body. Raises GGSError where standard output does not take all that it printed."""
    try:
        code = run()
    except OSError:
        _require_shown(
            say(sys.stdout, "")
        )  # an unbuffered one holds nothing back: does it take a line?
        raise
    except SystemExit:  # how a command line ends
        _require_shown(unwritten(sys.stdout))
        raise
    _require_shown(unwritten(sys.stdout))
    return code


def _require_shown(error: OSError | None) -> None:
    if error is not None:
        raise GGSError(f"cannot write to standard output: {error.strerror}") from None


def _where() -> str:
    """This task, before anything is known of it but its variables."""
    role = os.environ.get(pai_names.ROLE_NAME, "local")
    index = os.environ.get(pai_names.TASK_INDEX, "0")
    return f"task {role}-{index}"


def start(
    options: LaunchOptions, function: Callable[..., None], arguments: tuple[Any, ...] = ()
) -> int:
    """Run ``function(*arguments)`` in every worker of this node. Returns the launcher's exit code.

    In a process that is a worker already (torchrun started it) the function runs right here.
    ``function`` must be importable by its module's name, and ``arguments`` be picklable.
    """
    variables = dict(os.environ)
    if is_worker(variables):
        os.environ.update(variables_of_a_worker(variables))
        function(*arguments)
        return exit_codes.SUCCESS
    PAIEnvironment.from_mapping(variables)  # tells of a mistake before torch's import takes seconds
    placement = place(variables, options, visible_devices())
    _print(str(placement))
    if reason := doubt(variables, len(placement.tasks)):
        _print(f"ggs: warning: {reason}")
    return launch(placement, function, arguments, variables)


def visible_devices() -> Devices:
    """What PyTorch sees here. Imports torch; makes no CUDA context."""
    import torch

    supported = torch.version.cuda is not None or torch.version.hip is not None
    return Devices(torch.cuda.device_count(), supported)


def launch(
    placement: Placement,
    function: Callable[..., None],
    arguments: tuple[Any, ...],
    variables: Mapping[str, str],
) -> int:
    """Meet the other nodes, run this node's workers, and tell of a failure last. Returns the exit code.

    ``variables`` is the environment that the workers inherit. Raises RendezvousError or MismatchError
    if the nodes do not come together.
    """
    payload = Payload.to_call(
        placement.task, worker_variables(placement, variables), function, arguments
    )
    rendezvous, processes = rendezvous_of(placement), ProcessTree()
    try:
        with tempfile.TemporaryDirectory(prefix="ggs-") as folder:
            cause = _run(placement, rendezvous, payload, Path(folder))
            if cause is None:
                processes.wait()
    finally:
        processes.end()
        rendezvous.close()
    if cause is None:
        return exit_codes.SUCCESS
    _print(str(cause))
    return exit_codes.for_reader(cause.exit_code, variables)


def rendezvous_of(placement: Placement) -> Coordinator | Member:
    """The rendezvous as this node takes part in it."""
    return Coordinator(placement) if placement.node == 0 else Member(placement)


def _run(
    placement: Placement, rendezvous: "Rendezvous", payload: Payload, folder: Path
) -> Failure | None:
    """Run the workers to the end of all nodes. Returns the root cause of a failure, on any node."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

    from ggs.launch.agent import Agent, OtherNodeFailed, WorkerHangs

    path = folder / "payload"
    path.write_bytes(pickle.dumps(payload))
    agent = Agent(_worker_spec(placement, rendezvous, path), DefaultLogsSpecs(log_dir=str(folder)))
    agent.finish_timeout = placement.finish_timeout
    try:
        result = _run_agent(agent)
        if result.is_failed():
            return rendezvous.settle(_first(result.failures, placement.task))
        return None if rendezvous.finish() else rendezvous.settle(None)
    except OtherNodeFailed:
        return rendezvous.settle(None)
    except WorkerHangs as late:
        where = f"rank {late} on task {placement.task}"
        text = f"still runs {placement.finish_timeout:g} s after others have ended: it hangs"
        return rendezvous.settle(Failure(where, text, exit_codes.RETRY, time.time()))
    except Stopped as stop:
        if not rendezvous.gathered or len(placement.tasks) == 1:
            raise  # there is nobody to tell
        where = f"task {placement.task}"
        return rendezvous.settle(
            Failure(where, f"stopped by {stop}", exit_codes.RETRY, time.time())
        )


def _run_agent(agent: "Agent") -> "RunResult":
    """Run torch's agent. It has signal handlers of its own while it runs, which raise SignalException."""
    from torch.distributed.elastic.multiprocessing import SignalException

    try:
        with stop_on_signals(), _quiet_agent():
            result: RunResult = agent.run()
    except SignalException as stop:
        raise Stopped(stop.sigval) from None
    return result


def _worker_spec(placement: Placement, rendezvous: "Rendezvous", payload: Path) -> "WorkerSpec":
    from torch.distributed.elastic.agent.server.api import WorkerSpec

    from ggs.launch.agent import AgentRendezvous

    return WorkerSpec(
        role="worker",
        local_world_size=placement.local_world_size,
        entrypoint=sys.executable,
        args=("-u", "-m", "ggs.launch.worker_process", str(payload)),
        rdzv_handler=AgentRendezvous(placement, rendezvous),
        max_restarts=0,
        monitor_interval=MONITOR_SECONDS,
    )


def _first(ended_workers: "Mapping[int, ProcessFailure]", task: str) -> Failure:
    """The failure of this node's workers that explains the others."""
    recorded = {rank: _recorded(ended) for rank, ended in ended_workers.items()}
    causes = {
        rank: recorded[rank] or _ended(rank, ended_workers[rank], task) for rank in ended_workers
    }
    # The agent stops the others with SIGTERM as soon as one has failed, and lists them too.
    not_stopped = [
        causes[rank]
        for rank, ended in ended_workers.items()
        if recorded[rank] or ended.exitcode != -15
    ]
    return failures.root_cause(not_stopped or causes.values())


def _recorded(ended: "ProcessFailure") -> Failure | None:
    """What a worker recorded counts, however it ended: a thread's abort, or the agent, may have cut short
    its way out."""
    try:
        return Failure.from_message(ended.error_file_data)
    except ValueError:
        return None


def _ended(rank: int, ended: "ProcessFailure", task: str) -> Failure:
    """The failure of a worker that recorded none: killed, or through os._exit or sys.exit with a number."""
    where, now = f"rank {rank} on task {task}", time.time()
    if ended.exitcode < 0:
        return failures.of_signal(-ended.exitcode, where, now)
    code = exit_codes.of_worker(ended.exitcode)
    return Failure(where, f"ended with exit code {ended.exitcode}", code, now)


@contextmanager
def _quiet_agent() -> Iterator[None]:
    """Keep torch's agent from writing its own, longer story after ours. LOGLEVEL brings it back."""
    if "LOGLEVEL" in os.environ:
        yield
        return
    loggers = [
        logging.getLogger(name)
        for name in list(logging.root.manager.loggerDict)
        if name.startswith("torch.distributed.elastic")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _print(text: str) -> None:
    say(sys.stderr, text)

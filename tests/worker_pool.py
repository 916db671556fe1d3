"""A pool of real worker processes for multi-process tests.

Importing torch costs more than most tests, so one server imports it and every process is a fork of that
server; they live as long as the test run. Every call gets a fresh gloo process group over a file store.
"""

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

# Guards against hangs, not measures of speed: a busy machine may be many times slower than an idle one.
COLLECTIVE_SECONDS = 120.0
SECONDS = 200.0  # less than pytest's own time-out, which could not say which rank it was
START_SECONDS = 300.0  # importing torch
PRELOADED = ["numba", "numpy", "pytest", "hypothesis", "torch", "torch.distributed"]
"""What the server imports. Nothing of ggs: after a fork it would do without OpenMP."""
TRACEBACK_SECONDS = 60.0  # for all ranks to write where they are; most take no time


class WorkerFailure(Exception):
    """A worker raised; carries the traceback texts of all workers that did, by rank."""


class WorkerDied(Exception):
    """A worker's process ended; says how, and what it was doing."""


class _Worker(NamedTuple):
    process: multiprocessing.process.BaseProcess
    pipe: multiprocessing.connection.Connection

    def end(self) -> str:
        """How the process ended, in words."""
        self.process.join(60)  # the pipe closes a moment before the process is gone
        code = self.process.exitcode
        if code is None:
            return "closed its pipe"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


def _serve(
    pipe: multiprocessing.connection.Connection, *outputs: multiprocessing.connection.Connection
) -> None:
    import torch
    import torch.distributed as dist

    for number, output in enumerate(outputs, start=1):  # the server's own are an earlier test's
        os.dup2(output.fileno(), number)
    faulthandler.enable()  # a crash leaves a traceback
    # And so does a hang, when the pool asks: the process writes where it is, and ends.
    faulthandler.register(signal.SIGUSR1, chain=True)
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    pipe.send("ready")
    while True:
        try:
            function, arguments, rank, size, folder = pipe.recv()
        except EOFError:
            return
        try:
            store = dist.FileStore(os.path.join(folder, "store"), size)
            dist.init_process_group(
                "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=COLLECTIVE_SECONDS),
            )
            dist.barrier()  # nobody may leave while another still connects
            torch.manual_seed(0)
            answer = (True, function(rank, size, *arguments))
        except BaseException as error:
            answer = (False, (error, traceback.format_exc()))
            _leave()  # others may be waiting for this one
        try:
            pipe.send(answer)
        except Exception:
            pipe.send((False, (None, traceback.format_exc())))
        try:
            pipe.recv()  # all have answered: nobody connects a group of its own any more
        except EOFError:
            return
        _leave()


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _errors(answers: dict[int, Any]) -> list[tuple[int, str]]:
    return [(rank, value[1]) for rank, (ok, value) in sorted(answers.items()) if not ok]


class WorkerPool:
    """``run(n, function, *args)`` calls ``function(rank, n, *args)`` in n processes."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._workers: list[_Worker] = []
        self._last = "nothing"

    def start(self, size: int) -> None:
        """Have at least ``size`` processes that have imported torch."""
        fresh = []
        while len(self._workers) < size:
            ours, theirs = self._context.Pipe()
            outputs = [multiprocessing.connection.Connection(os.dup(n)) for n in (1, 2)]
            process = self._context.Process(target=_serve, args=(theirs, *outputs), daemon=True)
            process.start()
            for output in outputs:
                output.close()
            theirs.close()
            self._workers.append(_Worker(process, ours))
            fresh.append(self._workers[-1])
        for worker in fresh:
            try:
                if not worker.pipe.poll(START_SECONDS):
                    raise TimeoutError(f"a worker process did not start in {START_SECONDS} s")
                worker.pipe.recv()
            except (EOFError, ConnectionError):
                raise WorkerDied(f"a worker process {worker.end()} at its start") from None

    def run(self, size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return the results in rank order; raise the first worker's own exception if one failed."""
        name = getattr(function, "__qualname__", repr(function))
        with tempfile.TemporaryDirectory() as folder:
            try:
                self._bury_the_dead()
                self.start(size)
                for rank, worker in enumerate(self._workers[:size]):
                    worker.pipe.send((function, arguments, rank, size, folder))
                answers = self._answers(size, name)
                for worker in self._workers[:size]:
                    worker.pipe.send("all have answered")
            except BaseException:
                # A process is missing, or (a test's time-out came) still at work: the next test would
                # get this one's answers. It gets new processes instead. The folder outlives them:
                # nobody may write into it while it is removed.
                self.close()
                raise
        self._last = name
        failures = [(rank, *value) for rank, (ok, value) in enumerate(answers) if not ok]
        if failures:
            texts = "\n".join(f"--- rank {rank}\n{text}" for rank, _, text in failures)
            raise WorkerFailure(texts) from failures[0][1]
        return [value for _, value in answers]

    def _bury_the_dead(self) -> None:
        """Whatever ended while it had nothing to do was harmed by the test before, or by the machine."""
        for worker in self._workers:
            if not worker.process.is_alive():
                raise WorkerDied(
                    f"an idle worker process {worker.end()}; before, it ran {self._last}"
                )

    def _answers(self, size: int, name: str) -> list[Any]:
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + self._seconds
        while len(answers) < size:
            missing = {
                self._workers[rank].pipe: rank for rank in range(size) if rank not in answers
            }
            ready = multiprocessing.connection.wait(missing, deadline - time.monotonic())
            if not ready:
                self._ask_where_they_are(list(missing.values()))
                ranks = ", ".join(map(str, missing.values()))
                raise TimeoutError(
                    f"rank {ranks} of {size} gave no answer in {self._seconds:g} s from {name}"
                )
            for pipe in ready:
                rank = missing[pipe]  # type: ignore[index]
                try:
                    answers[rank] = self._workers[rank].pipe.recv()
                except (EOFError, ConnectionError):
                    end = self._workers[rank].end()
                    texts = [f"\n--- rank {r}\n{text}" for r, text in _errors(answers)]
                    raise WorkerDied(
                        f"rank {rank} of {size} {end} in {name}" + "".join(texts)
                    ) from None
        return [answers[rank] for rank in range(size)]

    def _ask_where_they_are(self, ranks: list[int]) -> None:
        """Have them write their tracebacks to stderr, one after the other, and end."""
        deadline = time.monotonic() + TRACEBACK_SECONDS
        for rank in ranks:
            process = self._workers[rank].process
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGUSR1)
                process.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """End all processes."""
        for process, pipe in self._workers:
            pipe.close()
            process.kill()
            process.join()
        self._workers.clear()

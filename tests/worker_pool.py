"""A pool of real worker processes for multi-process tests.

Importing torch costs more than most tests, so the processes live as long as the test run; every call
gets a fresh gloo process group over a file store.
"""

import multiprocessing
import multiprocessing.connection
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

SECONDS = 50.0
START_SECONDS = 180.0  # importing torch, on a busy machine


class WorkerFailure(Exception):
    """A worker raised; carries the traceback texts of all workers that did, by rank."""


def _serve(pipe: multiprocessing.connection.Connection) -> None:
    import torch
    import torch.distributed as dist

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
                "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30)
            )
            torch.manual_seed(0)
            answer = (True, function(rank, size, *arguments))
        except BaseException as error:
            answer = (False, (error, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        try:
            pipe.send(answer)
        except Exception:
            pipe.send((False, (None, traceback.format_exc())))


class WorkerPool:
    """``run(n, function, *args)`` calls ``function(rank, n, *args)`` in n processes."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._workers: list[
            tuple[multiprocessing.process.BaseProcess, multiprocessing.connection.Connection]
        ] = []

    def start(self, size: int) -> None:
        """Have at least ``size`` processes that have imported torch."""
        fresh = []
        while len(self._workers) < size:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))
            fresh.append(ours)
        for pipe in fresh:
            if not pipe.poll(START_SECONDS) or pipe.recv() != "ready":
                raise TimeoutError(f"a worker process did not start in {START_SECONDS} s")

    def run(self, size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return the results in rank order; raise the first worker's own exception if one failed."""
        self.start(size)
        with tempfile.TemporaryDirectory() as folder:
            for rank, (_, pipe) in enumerate(self._workers[:size]):
                pipe.send((function, arguments, rank, size, folder))
            answers = []
            for rank, (_, pipe) in enumerate(self._workers[:size]):
                if not pipe.poll(SECONDS):
                    self.close()
                    raise TimeoutError(f"rank {rank} of {size} gave no answer in {SECONDS} s")
                answers.append(pipe.recv())
        failures = [(rank, *value) for rank, (ok, value) in enumerate(answers) if not ok]
        if failures:
            texts = "\n".join(f"--- rank {rank}\n{text}" for rank, _, text in failures)
            raise WorkerFailure(texts) from failures[0][1]
        return [value for _, value in answers]

    def close(self) -> None:
        """End all processes."""
        for process, pipe in self._workers:
            pipe.close()
            process.kill()
            process.join()
        self._workers.clear()

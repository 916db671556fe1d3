"""torch's elastic agent, which finds the other nodes through a :class:`ggs.launch.rendezvous.Rendezvous`."""

import math
import time
from datetime import timedelta
from signal import Signals
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from ggs.launch.coordinator import Coordinator
from ggs.launch.placement import Placement
from ggs.launch.rendezvous import Rendezvous

STORE_SECONDS = 120
"""How long agents wait for each other's entries in the store once they have met."""
STOP_SECONDS = 10
"""What a worker may take to end after SIGTERM, to write out what it holds: as long as ``docker stop`` gives
it. With torch's 30 seconds a job whose worker hangs would end that much later."""


class OtherNodeFailed(Exception):
    """Another node has failed or is gone: this one's workers are to stop."""


class WorkerHangs(Exception):
    """A worker of this node still runs long after others of it have ended; its rank is the argument."""


class Agent(LocalElasticAgent):
    """The elastic agent, which leaves waiting for the other nodes' ends to Rendezvous.finish.

    Its own wait of five minutes cannot be interrupted and does not see other nodes fail.
    """

    finish_timeout = math.inf
    """Seconds that the node's last worker may take to end after the first has ended well."""
    _first_done: float | None = None

    def _exit_barrier(self) -> None:
        pass

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        ids: dict[int, Any] = super()._start_workers(worker_group)
        context = self._pcontext
        assert context is not None
        close = context.close

        # The agent's argument shutdown_timeout does not reach the stop after another worker's failure.
        def close_soon(death_sig: Signals | None = None, timeout: int = 0) -> None:
            close(death_sig, STOP_SECONDS)

        context.close = close_soon  # type: ignore[method-assign]
        return ids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state is WorkerState.HEALTHY and isinstance(self._pcontext, SubprocessContext):
            handlers = self._pcontext.subprocess_handlers
            running = [rank for rank, each in handlers.items() if each.proc.poll() is None]
            if len(running) < len(handlers):
                self._first_done = self._first_done or time.monotonic()
                if time.monotonic() > self._first_done + self.finish_timeout:
                    raise WorkerHangs(worker_group.workers[running[0]].global_rank)
        return result


class AgentRendezvous(RendezvousHandler):
    """A static rendezvous: nodes keep the ranks of their placement, and nobody joins later.

    The store that the workers' process groups start from listens on the agreed port of the first node,
    on that node's own address only.
    """

    def __init__(self, placement: Placement, rendezvous: Rendezvous) -> None:
        self._placement = placement
        self._rendezvous = rendezvous
        self._store: TCPStore | None = None

    @property
    def use_agent_store(self) -> bool:
        """Workers connect to the agent's store instead of making their own."""
        return True

    def get_backend(self) -> str:
        """The name of this kind of rendezvous."""
        return "openpai"

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the other nodes, then open the store. Raises what Rendezvous.gather raises."""
        port = self._rendezvous.gather()
        master, listener = self._placement.master, None
        if isinstance(self._rendezvous, Coordinator) and self._rendezvous.listener is not None:
            self._rendezvous.listener.setblocking(False)
            listener = self._rendezvous.listener.detach()
            self._rendezvous.listener = None
        self._store = TCPStore(
            master,
            port,
            is_master=listener is not None,
            timeout=timedelta(seconds=STORE_SECONDS),
            wait_for_workers=False,
            master_listen_fd=listener,
        )
        return RendezvousInfo(
            PrefixStore(self._placement.run_id, self._store),
            self._placement.node,
            len(self._placement.tasks),
            RendezvousStoreInfo(master, port),
        )

    def num_nodes_waiting(self) -> int:
        """0: nobody joins. The agent asks at every look at its workers, so others' ends are seen here."""
        if self._rendezvous.poll():
            raise OtherNodeFailed
        return 0

    def is_closed(self) -> bool:
        """Never: a rendezvous ends with its process."""
        return False

    def set_closed(self) -> None:
        """Nothing to do."""

    def get_run_id(self) -> str:
        """The attempt of the job."""
        return self._placement.run_id

    def shutdown(self) -> bool:
        """Nothing to do: the store closes with the process."""
        return True

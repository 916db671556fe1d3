"""Fixtures that every test may use."""

import fcntl
import functools
import gc
import importlib
import os
import pkgutil
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import docker
import docker.errors
import pytest
import torch
from hypothesis import HealthCheck, settings

import ggs
from ggs import wire
from ggs.train.kernels import compile_kernels
from tests.worker_pool import WorkerPool

ROOT = Path(__file__).resolve().parent.parent

# What the environment of whoever runs the tests may say, and would change what they see: the place in a
# job, a proxy that does not reach this machine's own servers, colours and the width of a terminal.
_FOREIGN = re.compile(
    r"(PAI|FC|TORCHELASTIC|SLURM|OMPI|PMI)_.*|(GLOO|NCCL)_SOCKET_IFNAME|MASTER_(ADDR|PORT)|LOGLEVEL"
    r"|(GROUP_|LOCAL_|ROLE_|NODE_)?(RANK|WORLD_SIZE)|.*_PROXY|GITHUB_ACTIONS|COLUMNS|LINES"
    r"|(FORCE|NO)_COLOR|CLICOLOR(_FORCE)?|PY_COLORS|TERMINAL_WIDTH|TTY_(COMPATIBLE|INTERACTIVE)",
    re.IGNORECASE,
)
for _name in filter(_FOREIGN.fullmatch, list(os.environ)):
    del os.environ[_name]

# Generated tests: "ci" runs the same cases every time, "nightly" (make fuzz) new ones. A case starts
# from the same state without fresh fixtures, and may take long on a machine that does other things.
_COMMON = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("ci", _COMMON, max_examples=100, derandomize=True)
settings.register_profile("nightly", _COMMON, max_examples=3500)
settings.load_profile("ci")
# Hypothesis also draws the constants of what has been imported: always everything, whatever test is first.
for _module in pkgutil.walk_packages(ggs.__path__, "ggs."):
    if find_spec("triton") or "triton" not in _module.name:
        importlib.import_module(_module.name)
CASES = "generated cases"


@pytest.fixture(scope="session")
def _compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The kernels, in the cache. In a fresh checkout every process would compile all of them at once.

    That takes a minute or more where two cores serve ten processes: longer than workers wait for
    each other.
    """
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with (shared / "compiling").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        for values_format in wire.VALUES_FORMATS:
            compile_kernels(values_format)


@pytest.fixture(scope="session")
def workers(_compiled: None) -> Iterator[WorkerPool]:
    """Real processes with a gloo group: ``workers.run(4, function, *args)``."""
    pool = WorkerPool()
    pool.start(4)
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Two test processes share two cores; more threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root folder."""
    return ROOT


@pytest.fixture
def benchmark(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a script of ``benchmarks/``, which finds its neighbours as when it is run."""
    monkeypatch.syspath_prepend(root / "benchmarks")
    return importlib.import_module


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """The Docker engine of this machine."""
    client, reason = _docker_engine()
    if client is None:
        pytest.skip(reason)
    yield client
    client.close()


def _docker_engine() -> tuple[docker.DockerClient | None, str]:
    # The docker library leaves the socket of a refused connection to the garbage collector, which may run
    # at any time: its warning would fail whichever test runs then.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return docker.from_env(), ""
        except docker.errors.DockerException as error:
            reason = f"no Docker engine answers: {error}"
        gc.collect()
    return None, reason


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--least-cases",
        type=int,
        default=0,
        help="fail unless the tests of parsers (marker fuzz) ran so many generated cases in all",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_CaseCounter(config.getoption("--least-cases")))


class _CaseCounter:
    """Counts the cases that Hypothesis really runs, over all processes of pytest-xdist."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._files: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        given = getattr(getattr(item, "obj", None), "hypothesis", None)
        if given is None or item.get_closest_marker("fuzz") is None:
            return (yield)
        plain, done = given.inner_test, [0]
        given.inner_test = _counted(plain, done)
        try:
            return (yield)
        finally:
            given.inner_test = plain
            item.user_properties.append((CASES, done[0]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            count = sum(int(str(n)) for name, n in report.user_properties if name == CASES)
            self._files[report.nodeid.partition("::")[0]] += count

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        # a process of xdist sees a part only; the one that started them decides
        too_few = self._files.total() < self._least and not hasattr(session.config, "workerinput")
        if too_few and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total = self._files.total()
        if total or self._least:
            terminalreporter.section(CASES)
            for file, count in sorted(self._files.items()):
                if count:
                    terminalreporter.write_line(f"{count:9,}  {file}")
            wanted = f" (at least {self._least:,} wanted)" if self._least else ""
            terminalreporter.write_line(f"{total:9,}  in all{wanted}")


def _counted(test: Callable[..., Any], done: list[int]) -> Callable[..., Any]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        result = test(*args, **kwargs)
        done[0] += 1  # one that was rejected, by assume(), does not get here
        return result

    return run

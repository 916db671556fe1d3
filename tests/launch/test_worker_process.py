"""How a worker process ends."""

import atexit
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ggs.launch.worker_process import Payload


def _leaves_things_to_wind_up(code: int) -> None:
    def after_main() -> None:
        threading.main_thread().join()
        print("thread", end=" ")

    atexit.register(print, "exit handler", end="")
    threading.Thread(target=after_main).start()
    print("work", end=" ")
    if code:
        sys.exit(code)


def _run(tmp_path: Path, function: Any, *arguments: Any) -> subprocess.CompletedProcess[str]:
    payload = Payload(os.getpid(), "here", {}, pickle.dumps((function, arguments)))
    (tmp_path / "payload").write_bytes(pickle.dumps(payload))
    command = [sys.executable, "-m", "ggs.launch.worker_process", str(tmp_path / "payload")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("code", [0, 7])
def test_threads_exit_handlers_and_output_are_waited_for(tmp_path: Path, code: int) -> None:
    ended = _run(tmp_path, _leaves_things_to_wind_up, code)
    assert (ended.returncode, ended.stdout) == (code, "work thread exit handler"), ended.stderr


class _DiesWithTheInterpreter:
    """What must not be reached any more: the teardown of the interpreter, where gloo's threads abort."""

    def __del__(self, write: Any = os.write) -> None:
        write(2, b"torn down")


def _keeps_an_object() -> None:
    sys.kept = _DiesWithTheInterpreter()  # type: ignore[attr-defined]


def test_the_interpreter_is_not_torn_down(tmp_path: Path) -> None:
    ended = _run(tmp_path, _keeps_an_object)
    assert (ended.returncode, ended.stderr) == (0, "")

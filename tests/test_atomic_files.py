"""Files are replaced whole, and a folder has one holder."""

import os
import signal
import stat
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from ggs.atomic_files import locked, replacing
from ggs.signals import handled


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_in_one_move(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path, durable=durable) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_secret_is_never_readable_to_others(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path, mode=0o600) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        temporary.write_text("secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def _hold(folder: Path, holds: Event, let_go: Event) -> None:
    with locked(folder):
        holds.set()
        let_go.wait()


def test_a_locked_folder_has_one_holder(tmp_path: Path) -> None:
    context = get_context("spawn")
    holds, let_go, second = context.Event(), context.Event(), context.Event()
    first = context.Process(target=_hold, args=(tmp_path, holds, let_go))
    other = context.Process(target=_hold, args=(tmp_path, second, let_go))
    first.start()
    assert holds.wait(60)
    other.start()
    assert not second.is_set()
    let_go.set()
    assert second.wait(60)
    first.join()
    other.join()


def test_handlers_are_put_back() -> None:
    before, seen = signal.getsignal(signal.SIGUSR1), []
    with handled([signal.SIGUSR1], lambda number, frame: seen.append(number)):
        os.kill(os.getpid(), signal.SIGUSR1)
    assert seen == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) == before

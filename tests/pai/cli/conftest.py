"""The ``pai`` command run in this process, against the fake server."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ggs.pai.cli import main as cli
from tests.pai.conftest import JOB
from tests.pai.fake_server import TOKEN, TOKEN_OF_BOB, TOKEN_OF_CAROL, FakePAI

Pai = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pai(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pai:
    """Run ``pai`` in this process, its input a pipe; gives exit code, stdout and stderr."""

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pai", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        for token in (TOKEN, TOKEN_OF_BOB, TOKEN_OF_CAROL):
            assert token not in out + err
        return int(end.value.code or 0), out, err

    return run


@pytest.fixture
def known(pai: Pai, server: FakePAI) -> FakePAI:
    """A server that the user has added as ``lab``."""
    assert pai("cluster", "add", "lab", server.url, stdin=TOKEN)[0] == 0
    server.requests.clear()
    return server


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A job file without findings."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(name="one"))
    return str(path)

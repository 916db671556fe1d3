"""Which findings stop a file, by the system that it is for and by the user's word."""

from pathlib import Path

import pytest

from tests.pai.cli.conftest import Pai
from tests.pai.fake_server import FakePAI


@pytest.fixture
def for_ltp(file: str) -> str:
    """A file with a key that only LTP knows."""
    path = Path(file)
    path.write_text(path.read_text().replace("type: job\n", "type: job\njobType: training\n", 1))
    return file


def test_an_error_of_one_system_stops_only_there(pai: Pai, known: FakePAI, for_ltp: str) -> None:
    code, _, err = pai("job", "submit", for_ltp)
    assert "jobType: on OpenPAI 1.8.1, jobType exists only on LTP" in err
    stopped = known.flavour == "openpai"
    assert code == stopped
    assert len(known.sent("POST")) == (not stopped)


def test_the_system_can_be_said(pai: Pai, known: FakePAI, for_ltp: str) -> None:
    assert pai("job", "validate", for_ltp)[0] == 1
    assert pai("job", "validate", for_ltp, "--target", "ltp")[0] == 0
    assert pai("job", "submit", for_ltp, "--target", "openpai")[0] == 1
    assert not known.requests
    assert (
        pai("job", "validate", for_ltp, "--json", "--target", "openpai")[1].count('"job-type"') == 1
    )
    code, _, err = pai("job", "validate", for_ltp, "--target", "pai")
    assert (code, "--target pai: use openpai, ltp or both" in err) == (2, True)


def test_a_dry_run_only_warns_of_what_one_system_minds(pai: Pai, for_ltp: str) -> None:
    code, _, err = pai("job", "submit", for_ltp, "--dry-run")
    assert (code, "jobType exists only on LTP" in err) == (0, True)


def test_a_finding_that_the_user_knows_better_about(pai: Pai, known: FakePAI, file: str) -> None:
    path = Path(file)
    path.write_text(path.read_text() + "extras: {hivedScheduler: }\n")
    assert pai("job", "submit", file)[0] == 1
    code, _, err = pai("job", "submit", file, "--ignore", "hived-type")
    assert code == 0
    assert "[hived-type] (ignored)" in err
    assert len(known.sent("POST")) == 1
    code, _, err = pai("job", "submit", file, "--ignore", "hived-typ")
    assert code == 2
    assert "--ignore hived-typ: there is no such check; did you mean hived-type?" in err


def test_a_file_that_cannot_be_read_is_not_sent_whatever_is_ignored(
    pai: Pai, known: FakePAI, file: str
) -> None:
    Path(file).write_text("a: [")
    assert pai("job", "submit", file, "--ignore", "yaml-syntax")[0] == 2
    assert not known.requests

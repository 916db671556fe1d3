"""What a cluster has: virtual clusters, storages, SKU types; and the shell's completion."""

import json
import os
import subprocess
import sys

import pytest

from tests.pai import fake_cluster
from tests.pai import fake_server as fake
from tests.pai.cli.conftest import Pai
from tests.pai.fake_server import FakePAI


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()[1:]]


def test_virtual_clusters_and_their_free_gpus(pai: Pai, known: FakePAI) -> None:
    code, out, _ = pai("cluster", "virtual-clusters")
    assert code == 0
    # free are the healthy ones that no job uses
    assert rows(out) == [
        ["default", "5", "3", "10", "30", "5000", "yes"],
        ["prod", "0", "4", "4", "0", "0", "no"],
    ]
    first = json.loads(pai("cluster", "virtual-clusters", "--json")[1])[0]
    assert (first["name"], first["gpus_free"], first["allowed"]) == ("default", 5, True)


def test_rights_that_are_not_told(pai: Pai, known: FakePAI) -> None:
    def then_refuse(handler: fake._Handler) -> None:
        handler.answer()
        known.fault("GET", fake.say(403, b'{"code":"ForbiddenUserError","message":"no"}'))

    known.fault("GET", then_refuse)
    code, out, _ = pai("cluster", "virtual-clusters")
    assert code == 0
    assert [row[-1] for row in rows(out)] == ["-", "-"]


def test_storages(pai: Pai, known: FakePAI) -> None:
    code, out, _ = pai("cluster", "storages")
    assert (code, rows(out)) == (0, [["team", "yes", "yes"], ["datasets", "no", "no"]])
    assert len(json.loads(pai("cluster", "storages", "--json")[1])) == 2
    code, out, err = pai("cluster", "storages", "team")
    assert code == 0
    assert ["containerName", "box"] in [line.split() for line in out.splitlines()]
    asjson = pai("cluster", "storages", "team", "--json")[1]
    assert json.loads(asjson)["data"]["accountKey"] == "******"
    assert "storage-key-9" not in out + err + asjson
    code, _, err = pai("cluster", "storages", "datasets")
    assert (code, "forbids this for storage 'datasets'" in err) == (3, True)
    code, _, err = pai("cluster", "storages", "none")
    assert (code, "Storage none is not found" in err) == (3, True)


def test_sku_types(pai: Pai, known: FakePAI, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = pai("cluster", "skus")
    assert (code, rows(out)) == (0, [["CPU", "0", "4", "8192"], ["V100", "1", "6", "56334"]])
    assert pai("cluster", "skus", "--virtual-cluster", "prod", "--json")[0] == 0
    code, _, err = pai("cluster", "skus", "--virtual-cluster", "none")
    assert (code, "Cannot get sku types" in err, "address" in err) == (3, True, False)
    monkeypatch.setattr(fake_cluster, "SKUS", {})
    assert "runs without HiveD" in pai("cluster", "skus")[2]


def test_the_clusters_version(pai: Pai, known: FakePAI) -> None:
    code, out, _ = pai("cluster", "info")
    assert code == 0
    found = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert (found["version"], found["user"], found["address"]) == ("v1.8.1", "alice", known.url)
    assert json.loads(pai("cluster", "info", "--json")[1])["authnMethod"] == "basic"


def test_aliases_as_json(pai: Pai, known: FakePAI) -> None:
    (entry,) = json.loads(pai("cluster", "list", "--json")[1])
    assert (entry["alias"], entry["user"], entry["token"]) == ("lab", "alice", True)
    assert json.loads(pai("cluster", "remove", "lab", "--json")[1]) == {"alias": "lab"}


@pytest.mark.parametrize(
    "answer", [b"[]", b'{"default": 3}', b'{"default": {"resourcesUsed": []}}', b"{}", b"null"]
)
def test_answers_that_are_none_of_openpais(pai: Pai, known: FakePAI, answer: bytes) -> None:
    known.fault("GET", fake.say(200, answer))
    code, _, err = pai("cluster", "virtual-clusters")
    assert (code, "Traceback" in err) == (0 if answer == b"{}" else 4, False)
    for command in (("storages",), ("storages", "team"), ("skus",), ("info",)):
        known.fault("GET", fake.say(200, answer))
        assert pai("cluster", *command)[0] in (0, 4)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("pai ", {"job", "cluster"}),
        ("pai job st", {"status", "stop"}),
        ("pai job list --st", {"--state"}),
        ("pai job list --state R", {"RUNNING"}),
        ("pai job list --cluster l", {"lab"}),
        ("pai cluster remove l", {"lab"}),
    ],
)
@pytest.mark.usefixtures("known")
def test_the_shell_completes(words: str, expected: set[str]) -> None:
    variables = {
        "_PAI_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", "from ggs.pai.cli.main import main; main()"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == expected
    assert done.stderr == ""

import json
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ggs.errors import ConfigurationError
from ggs.pai.client import clusters
from ggs.pai.client.clusters import Cluster
from tests.fuzz import EDITS, Edits, bounded, damaged
from tests.pai.fake_server import TOKEN

# as `opai cluster add` writes it, with a key that GGS does not know
OPAI = """\
- cluster_alias: school
  info: {authnMethod: basic}
  pai_uri: http://10.0.0.1
  password: 123456
  storages:
  - protocol: hdfs
    storage_alias: hdfs-0
    webhdfs: http://10.0.0.1/webhdfs
  token: null
  user: alice
  virtual_clusters: [default]
- cluster_alias: lab
  comment: mine
  pai_uri: https://pai.example.org/
  password: null
  token: token-of-lab
  user: bob
  virtual_clusters: []
"""
# as `pai addc` of the JavaScript SDK writes it
JS = [
    {
        "cluster": {
            "pai_uri": "192.168.1.2:8080",
            "username": "carol",
            "token": "token-of-js",
            "alias": "js",
            "https": False,
            "rest_server_uri": "192.168.1.2:8080/rest-server",
        },
        "cache": [{"type": "x"}],
    },
    {"cluster": {"pai_uri": "https://secure.example.org", "username": "carol", "https": True}},
    {"cluster": {"pai_uri": "http://other", "username": "c", "alias": "lab", "token": "hidden"}},
]


def write(home: Path, name: str, text: str, mode: int = 0o600) -> Path:
    path = home / ".openpai" / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def stored(home: Path) -> Any:
    return yaml.safe_load((home / ".openpai" / "clusters.yaml").read_text())


def test_no_file_is_no_cluster(home: Path) -> None:
    assert clusters.load() == ([], [])
    with pytest.raises(ConfigurationError, match="no cluster is known yet: pai cluster add"):
        clusters.choose([], None)
    assert not (home / ".openpai").exists()


def test_both_sdks_files_are_read(home: Path) -> None:
    write(home, "clusters.yaml", OPAI)
    write(home, "clusters.json", json.dumps(JS))
    found, warnings = clusters.load()
    assert not warnings
    assert [(item.alias, item.uri, item.user, item.token, item.password) for item in found] == [
        ("school", "http://10.0.0.1", "alice", None, "123456"),
        ("lab", "https://pai.example.org", "bob", "token-of-lab", None),
        ("js", "http://192.168.1.2:8080", "carol", "token-of-js", None),
        ("secure.example.org", "https://secure.example.org", "carol", None, None),
    ]
    assert clusters.choose(found, "js").user == "carol"
    with pytest.raises(ConfigurationError, match="known: school, lab, js, secure"):
        clusters.choose(found, "nowhere")
    with pytest.raises(ConfigurationError, match="choose one with --cluster"):
        clusters.choose(found, None)
    assert clusters.choose(found[:1], None).alias == "school"


def test_no_secret_in_a_repr(home: Path) -> None:
    write(home, "clusters.yaml", OPAI)
    text = repr(clusters.load())
    assert "123456" not in text
    assert "token-of-lab" not in text


@pytest.mark.parametrize("name", ["clusters.yaml", "clusters.json"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_reported(home: Path, name: str, mode: int) -> None:
    path = write(home, name, OPAI if name.endswith("yaml") else json.dumps(JS), mode)
    assert clusters.load()[1] == [f"{path} holds tokens and others can read it: chmod 600 {path}"]


def test_a_file_that_anyone_can_write_is_not_used(home: Path) -> None:
    """Whoever can write it could name a server of their own, which would be sent the token."""
    path = write(home, "clusters.yaml", OPAI, 0o666)
    with pytest.raises(ConfigurationError, match=f"written by every user .*: chmod 600 {path}"):
        clusters.load()


def test_a_file_of_another_user_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(home, "clusters.yaml", OPAI, 0o644)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    assert clusters.load()[0]  # root may look
    monkeypatch.setattr(os, "geteuid", lambda: 23456)
    with pytest.raises(ConfigurationError, match="belongs to another user of this machine"):
        clusters.load()


def test_adding_keeps_everything_else(home: Path) -> None:
    write(home, "clusters.yaml", OPAI, 0o644)
    before = yaml.safe_load(OPAI)
    assert not clusters.add(Cluster("new", "https://new.example.org", "alice", TOKEN))
    assert stored(home)[:2] == before
    assert stored(home)[2] == {
        "cluster_alias": "new",
        "pai_uri": "https://new.example.org",
        "user": "alice",
        "password": None,
        "token": TOKEN,
        "info": {},
        "storages": [],
        "virtual_clusters": [],
    }
    assert clusters.add(Cluster("lab", "https://pai2.example.org", "bob", "next", insecure=True))
    changed = {"pai_uri": "https://pai2.example.org", "token": "next", "insecure": True}
    assert stored(home)[:2] == [before[0], before[1] | changed]
    assert clusters.load()[0][1].insecure
    clusters.add(Cluster("lab", "https://pai2.example.org", "bob", "next"))
    assert not clusters.load()[0][1].insecure


def test_what_is_written_is_read_back(home: Path) -> None:
    bundle = home / "ca.pem"
    cluster = Cluster("a.b-c_d", "https://h:8443/pai", "al@x.org", "t" * 9, ca_bundle=bundle)
    clusters.add(cluster)
    (found,) = clusters.load()[0]
    assert (found.alias, found.uri, found.user, found.token, found.ca_bundle) == (
        *("a.b-c_d", "https://h:8443/pai", "al@x.org", "t" * 9),
        bundle,
    )


def test_files_are_the_users_alone(home: Path) -> None:
    old = os.umask(0)
    try:
        clusters.add(Cluster("a", "https://h", "alice", TOKEN))
    finally:
        os.umask(old)
    path = home / ".openpai" / "clusters.yaml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o666)
    clusters.add(Cluster("b", "https://h", "alice", TOKEN))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["clusters.yaml"]


def test_a_linked_file_stays_a_link(home: Path) -> None:
    target = home / "dotfiles.yaml"
    target.write_text(OPAI)
    (home / ".openpai").mkdir()
    (home / ".openpai" / "clusters.yaml").symlink_to(target)
    clusters.remove("lab")
    assert (home / ".openpai" / "clusters.yaml").is_symlink()
    assert len(yaml.safe_load(target.read_text())) == 1


def test_a_failed_write_keeps_the_old_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(home, "clusters.yaml", OPAI)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ConfigurationError, match="cannot be written: No space left") as error:
        clusters.add(Cluster("a", "https://h", "alice", TOKEN))
    assert TOKEN not in str(error.value)
    assert path.read_text() == OPAI
    assert os.listdir(path.parent) == ["clusters.yaml"]


def test_writers_at_the_same_time_lose_nothing(home: Path) -> None:
    def add(index: int) -> None:
        clusters.add(Cluster(f"c{index}", "https://h", "alice", TOKEN))

    threads = [threading.Thread(target=add, args=(index,)) for index in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {entry["cluster_alias"] for entry in stored(home)} == {f"c{i}" for i in range(12)}


def test_removing(home: Path) -> None:
    write(home, "clusters.yaml", OPAI)
    write(home, "clusters.json", json.dumps(JS))
    clusters.remove("lab")  # now the one in clusters.json is seen
    assert stored(home) == yaml.safe_load(OPAI)[:1]
    with pytest.raises(ConfigurationError, match="belongs to the JavaScript SDK"):
        clusters.remove("lab")
    with pytest.raises(ConfigurationError, match="no cluster is called 'nowhere'"):
        clusters.remove("nowhere")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("clusters.yaml", "a: b", "should be a list of clusters"),
        ("clusters.yaml", "- a: b: secret-token", r"is damaged \(line 1\)"),
        ("clusters.yaml", "- !!python/object/apply:os.system [ls]", r"is damaged \(line 1\)"),
        ("clusters.yaml", "[" * 5000, "is damaged"),
        ("clusters.yaml", "- 2001-99-99", "is damaged"),
        ("clusters.yaml", "- &a {x: 1}\n- {<<: [*a, *a]}", "is damaged"),
        ("clusters.yaml", " " * 300_000, "larger than 256 KiB"),
        ("clusters.json", '{"a": "secret-token', "is damaged"),
        ("clusters.json", "[" * 100_000, "is damaged"),
        ("clusters.json", "{}", "should be a list of clusters"),
        ("clusters.yaml", '- !!int ""', "is damaged"),
        ("clusters.yaml", "- !!bool x", "is damaged"),
        ("clusters.yaml", "- !!timestamp x", "is damaged"),
        ("clusters.yaml", "- " + "1:" * 200 + "1.0", "is damaged"),
        ("clusters.yaml", "- " + "1:" * 100_000 + "1", "is damaged"),
        ("clusters.yaml", "- 0x" + "f" * 5000, "is damaged"),
        ("clusters.yaml", "- " * 100_000, "is damaged"),
        ("clusters.json", "[" + "9" * 5000 + "]", "is damaged"),
    ],
)
def test_damaged_files_are_told_and_never_written(
    home: Path, name: str, text: str, words: str
) -> None:
    path = write(home, name, text)
    with bounded(), pytest.raises(ConfigurationError, match=words) as error:
        clusters.load()
    assert str(path) in str(error.value)
    assert "secret-token" not in str(error.value)
    if name == "clusters.yaml":
        with pytest.raises(ConfigurationError, match=words):
            clusters.add(Cluster("a", "https://h", "alice", TOKEN))
    assert path.read_text() == text


def test_entries_that_are_none_are_skipped_and_kept(home: Path) -> None:
    text = "- just text\n- {cluster_alias: a, user: b}\n- {cluster_alias: c, pai_uri: 7, user: d}\n"
    write(home, "clusters.yaml", text + OPAI)
    found, warnings = clusters.load()
    assert [item.alias for item in found] == ["school", "lab"]
    assert [warning.split("entry ")[1] for warning in warnings] == [
        "1 is not usable: it is not a mapping",
        "2 is not usable: it has no 'pai_uri'",
        "3 is not usable: '7' is not an address such as https://pai.example.org",
    ]
    clusters.remove("lab")
    assert stored(home)[:3] == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("given_uri", "uri"),
    [
        ("https://pai.example.org/", "https://pai.example.org"),
        (" http://10.0.0.1:8080 ", "http://10.0.0.1:8080"),
        ("https://h/pai/rest-server/api/v2/", "https://h/pai"),
        ("https://[::1]:80", "https://[::1]:80"),
    ],
)
def test_addresses(given_uri: str, uri: str) -> None:
    assert clusters.check_uri(given_uri) == uri


@pytest.mark.parametrize(
    "uri",
    [
        *("pai.example.org", "ftp://h", "https://", "https://me:secret@h", "https://h/?a=b"),
        *("https://h#x", "https://a b", "https://h:99999", "https://[::1", "javascript:alert(1)"),
        *("", "/" * 3000),
    ],
)
def test_what_is_no_address(uri: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        clusters.check_uri(uri)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("alias", "user", "words"),
    [("a b", "alice", "alias 'a b'"), ("-a", "alice", "alias"), ("a", "al~ice", "not a user name")],
)
def test_names_that_openpai_or_a_shell_would_mistake(
    home: Path, alias: str, user: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        clusters.add(Cluster(alias, "https://h", user, TOKEN))
    assert not (home / ".openpai").exists()


any_text = st.text(max_size=200)
any_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)
entries = st.lists(
    any_value
    | st.dictionaries(
        st.sampled_from(["cluster_alias", "pai_uri", "user", "token", "password", "cluster"]),
        any_value | st.just("https://h"),
    ),
    max_size=4,
)


@pytest.mark.fuzz
@given(
    st.sampled_from(["clusters.yaml", "clusters.json"]),
    st.binary(max_size=300)
    | entries.map(lambda value: yaml.safe_dump(value, allow_unicode=True).encode())
    | entries.map(lambda value: json.dumps(value).encode()),
)
def test_any_file_is_read_or_refused(home: Path, name: str, data: bytes) -> None:
    path = write(home, name, "")
    path.write_bytes(data)
    with suppress(ConfigurationError):
        for cluster in clusters.load()[0]:
            assert cluster.uri == clusters.check_uri(cluster.uri)
    path.unlink()


@pytest.mark.fuzz
@given(EDITS, st.booleans())
def test_any_damaged_file_is_read_or_refused(home: Path, edits: Edits, is_json: bool) -> None:
    content = (json.dumps(JS) if is_json else OPAI).encode()
    path = write(home, f"clusters.{'json' if is_json else 'yaml'}", "")
    path.write_bytes(damaged(content, edits))
    with suppress(ConfigurationError):
        clusters.load()
        clusters.add(Cluster("unlikely-alias", "https://h", "alice", TOKEN))
        assert "unlikely-alias" in [cluster.alias for cluster in clusters.load()[0]]
    for left in path.parent.iterdir():
        left.unlink()


def test_aliases_are_kept_and_stand_for_no_copies(home: Path) -> None:
    """2^40 values in a file of 2 KB, of which only 41 lists are ever built."""
    lines = ["- &a0 [x, x]", *(f"- &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
    write(home, "clusters.yaml", "\n".join(lines))
    with bounded():
        assert clusters.load()[0] == []
        clusters.add(Cluster("a", "https://h", "alice", TOKEN))
        assert [cluster.alias for cluster in clusters.load()[0]] == ["a"]
    assert (home / ".openpai" / "clusters.yaml").stat().st_size < 4096


@pytest.mark.parametrize("name", ["clusters.yaml", "clusters.json"])
def test_a_huge_file_is_not_read(home: Path, name: str) -> None:
    with write(home, name, "").open("wb") as file:
        file.truncate(2**30)
    with bounded(), pytest.raises(ConfigurationError, match="larger than"):
        clusters.load()


@pytest.mark.fuzz
@given(entries)
def test_other_entries_survive_a_change(home: Path, kept: list[Any]) -> None:
    path = write(home, "clusters.yaml", yaml.safe_dump(kept, allow_unicode=True))
    before = stored(home)
    clusters.add(Cluster("unlikely-alias", "https://h", "alice", TOKEN))
    clusters.remove("unlikely-alias")
    assert stored(home) == before
    path.unlink()


@pytest.mark.fuzz
@given(st.text() | st.text("/:@?#[]%.ahtps").map(lambda text: "https://" + text))
def test_any_address_is_checked_once_and_for_all(text: str) -> None:
    with suppress(ConfigurationError):
        uri = clusters.check_uri(text)
        assert clusters.check_uri(uri) == uri
        assert uri.startswith(("http://", "https://"))

"""Clusters that the user knows by an alias: openpaisdk's own files, so that people keep theirs.

``~/.openpai/clusters.yaml`` (the Python SDK, ``opai``) is read and written: a list of mappings with
``cluster_alias``, ``pai_uri``, ``user``, ``password``, ``token`` and what ``opai`` found out
(``info``, ``storages``, ``virtual_clusters``). GGS adds ``ca_bundle`` and ``insecure``, which
``opai`` ignores. Entries and keys that GGS does not know are kept.

``~/.openpai/clusters.json`` (the JavaScript SDK, also called ``pai``) is only read: a list of
``{"cluster": {alias, pai_uri, username, token, password, https}, "cache": [...]}``.

Both hold tokens: a file that others can read is reported, one that others can write or that belongs to
somebody else is not used, and what GGS writes has mode 0600.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from ggs import plain_yaml
from ggs.atomic_files import locked, replacing
from ggs.errors import ConfigurationError

# of the YAML file, whose parser is slow, and of the JSON file, where the SDK also keeps a cache
MAX_FILE_BYTES = {".yaml": 1 << 18, ".json": 1 << 24}
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_USER = re.compile(r"[A-Za-z0-9._@-]{1,255}")


@dataclass(frozen=True)
class Cluster:
    """One OpenPAI cluster and who the user is there; the secrets stay out of its ``repr``."""

    alias: str
    uri: str
    user: str
    token: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    ca_bundle: Path | None = None
    insecure: bool = False
    source: str = ""

    def job_url(self, job: str, user: str | None = None) -> str:
        """The web portal's page of a job."""
        return f"{self.uri}/job-detail.html?username={user or self.user}&jobName={job}"


def check_uri(text: str) -> str:
    """The address of a portal as ``scheme://host[:port][/path]``, or ConfigurationError."""
    if len(text) > 2000:
        raise ConfigurationError("the address is longer than 2000 characters")
    uri = re.sub(r"(/rest-server(/.*)?)?/*$", "", text.strip())
    if re.search(r"[\s\x00-\x1f\x7f]", uri):
        raise ConfigurationError(f"{text!r} is not an address: it contains spaces")
    try:
        parts = urlsplit(uri)
        parts.port  # noqa: B018  an impossible port raises ValueError here
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is not an address: {error}") from None
    if "@" in parts.netloc:
        raise ConfigurationError("the address must not contain a user name or a password")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"{text!r} is not an address such as https://pai.example.org")
    if parts.query or parts.fragment:
        raise ConfigurationError(f"{text!r}: give the address without what follows '?' or '#'")
    return uri


def folder() -> Path:
    """The folder of openpaisdk's files, ``~/.openpai``."""
    return Path.home() / ".openpai"


def load() -> tuple[list[Cluster], list[str]]:
    """All usable clusters, ``clusters.yaml`` before ``clusters.json``, and warnings.

    Raises ConfigurationError for a file that is not what openpaisdk writes.
    """
    clusters: dict[str, Cluster] = {}
    warnings: list[str] = []
    for path, parse in ((yaml_path(), _from_yaml), (folder() / "clusters.json", _from_json)):
        entries = _read(path)
        if entries and stat.S_IMODE(path.stat().st_mode) & 0o077:
            _require_own(path)
            warnings.append(f"{path} holds tokens and others can read it: chmod 600 {path}")
        for index, entry in enumerate(entries):
            try:
                cluster = parse(entry, str(path))
            except ConfigurationError as error:
                warnings.append(f"{path}: entry {index + 1} is not usable: {error}")
            else:
                clusters.setdefault(cluster.alias, cluster)
    return list(clusters.values()), warnings


def choose(clusters: list[Cluster], alias: str | None) -> Cluster:
    """The cluster called ``alias``, or the only one there is."""
    names = ", ".join(cluster.alias for cluster in clusters)
    if not clusters:
        raise ConfigurationError("no cluster is known yet: pai cluster add ALIAS ADDRESS")
    if alias is None:
        if len(clusters) == 1:
            return clusters[0]
        raise ConfigurationError(f"several clusters are known, choose one with --cluster: {names}")
    for cluster in clusters:
        if cluster.alias == alias:
            return cluster
    raise ConfigurationError(f"no cluster is called {alias!r}; known: {names}")


def add(cluster: Cluster) -> bool:
    """Write ``cluster`` to ``clusters.yaml``; True if it replaces an entry of the same alias.

    The entry's other keys, and all other entries, are kept as they are.
    """
    if not _ALIAS.fullmatch(cluster.alias):
        raise ConfigurationError(
            f"alias {cluster.alias!r}: use letters, digits, '.', '_' and '-', at most 100"
        )
    if not _USER.fullmatch(cluster.user):
        raise ConfigurationError(f"{cluster.user!r} is not a user name of OpenPAI")
    ours = {
        "cluster_alias": cluster.alias,
        "pai_uri": cluster.uri,
        "user": cluster.user,
        "password": cluster.password,
        "token": cluster.token,
        "ca_bundle": str(cluster.ca_bundle) if cluster.ca_bundle else None,
        "insecure": cluster.insecure or None,
    }
    # opai reads these three without a default
    found_by_opai: dict[str, Any] = {"info": {}, "storages": [], "virtual_clusters": []}
    with _locked():
        entries = _read(yaml_path())
        old = next((entry for entry in entries if _alias_of(entry) == cluster.alias), None)
        entry = found_by_opai if old is None else old
        entry.update(ours)
        for key in ("ca_bundle", "insecure"):
            if entry[key] is None:
                del entry[key]
        _write(entries if old is not None else [*entries, entry])
    return old is not None


def remove(alias: str) -> None:
    """Delete ``alias`` from ``clusters.yaml``; ConfigurationError if it is not there."""
    with _locked():
        entries = _read(yaml_path())
        kept = [entry for entry in entries if _alias_of(entry) != alias]
        if len(kept) < len(entries):
            _write(kept)
            return
    if any(cluster.alias == alias for cluster in load()[0]):
        raise ConfigurationError(
            f"{alias!r} is in {folder() / 'clusters.json'}, which belongs to the JavaScript "
            f"SDK: remove it there (delc {alias})"
        )
    raise ConfigurationError(f"no cluster is called {alias!r}")


def yaml_path() -> Path:
    """The file that GGS shares with ``opai``."""
    return folder() / "clusters.yaml"


def _require_own(path: Path) -> None:
    """Refuse a file through which somebody else could choose who this user is, and where tokens go.

    Only root can read a file of mode 0600 that belongs to somebody else.
    """
    found = path.stat()
    if found.st_mode & stat.S_IWOTH:
        raise ConfigurationError(
            f"{path} can be written by every user of this machine: chmod 600 {path}"
        )
    if os.geteuid() != 0 and found.st_uid not in (0, os.geteuid()):
        raise ConfigurationError(
            f"{path} belongs to another user of this machine (uid {found.st_uid}): its tokens are "
            "theirs; set HOME to your own folder"
        )


def _alias_of(entry: Any) -> Any:
    return entry.get("cluster_alias") if isinstance(entry, dict) else None


def _read(path: Path) -> list[Any]:
    """The entries of a cluster file; [] if there is none."""
    limit = MAX_FILE_BYTES[path.suffix]
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    if len(data) > limit:
        raise ConfigurationError(f"{path} is larger than {limit >> 10} KiB: not a cluster file")
    try:
        text = data.decode()
        is_json = path.suffix == ".json"
        entries = json.loads(text or "null") if is_json else plain_yaml.load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        # only the place: the text around it may hold a token
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise ConfigurationError(
            f"{path} is damaged{line}: correct it, or move it away and add the clusters again"
        ) from None
    if entries is None:
        return []
    if not isinstance(entries, list):
        raise ConfigurationError(f"{path} should be a list of clusters, as openpaisdk writes it")
    return entries


def _from_yaml(entry: Any, source: str) -> Cluster:
    if not isinstance(entry, dict):
        raise ConfigurationError("it is not a mapping")
    ca_bundle = _text(entry, "ca_bundle")
    return Cluster(
        alias=_required(entry, "cluster_alias"),
        uri=check_uri(_required(entry, "pai_uri")),
        user=_required(entry, "user"),
        token=_text(entry, "token"),
        password=_text(entry, "password"),
        ca_bundle=Path(ca_bundle) if ca_bundle else None,
        insecure=entry.get("insecure") is True,
        source=source,
    )


def _from_json(item: Any, source: str) -> Cluster:
    entry = item.get("cluster") if isinstance(item, dict) else None
    if not isinstance(entry, dict):
        raise ConfigurationError("it has no 'cluster'")
    uri = _text(entry, "pai_uri") or _required(entry, "rest_server_uri")
    if "://" not in uri:
        uri = ("https://" if entry.get("https") is True else "http://") + uri
    uri = check_uri(uri)
    return Cluster(
        alias=_text(entry, "alias") or str(urlsplit(uri).hostname),
        uri=uri,
        user=_required(entry, "username"),
        token=_text(entry, "token"),
        password=_text(entry, "password"),
        source=source,
    )


def _text(entry: dict[Any, Any], key: str) -> str | None:
    value = entry.get(key)
    # YAML reads an unquoted password of digits as a number
    if isinstance(value, int) and value.bit_length() < 1024:
        value = str(value)
    return value if isinstance(value, str) and value else None


def _required(entry: dict[Any, Any], key: str) -> str:
    value = _text(entry, key)
    if value is None:
        raise ConfigurationError(f"it has no {key!r}")
    return value


@contextmanager
def _locked() -> Iterator[None]:
    """Hold ``~/.openpai`` against another ``pai`` that writes at the same time."""
    path = folder()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(path):
            yield
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None


def _write(entries: list[Any]) -> None:
    path = yaml_path().resolve()  # the file itself, where the user's is a link
    text = yaml.safe_dump(entries, default_flow_style=False, sort_keys=False)
    try:
        with replacing(path, mode=0o600, durable=True) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from None

"""Container images: what the init container's image check and the registries accept."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ggs.pai.job.document import Path
from ggs.pai.validate.finding import JobView, Target, Violation, rule

_REPOSITORY = re.compile(r"[a-z\-_.0-9]+[/a-z\-_.0-9]*")
_TAG = re.compile(r"[a-z\-_.0-9]+")
_CHECK_FAILS = "the init container's image check exits with 254, which is never retried"


def _images(view: JobView) -> Iterator[tuple[Path, str]]:
    """Path and text of each image's uri that is not a template."""
    for path, item in view.prerequisites:
        uri = item.get("uri")
        if item.get("type") == "dockerimage" and isinstance(uri, str) and "<%" not in uri:
            yield (*path, "uri"), uri


def _split(uri: str) -> tuple[str, str, str]:
    """Registry host, repository and tag, cut as the image check cuts them; absent ones empty."""
    host, slash, rest = uri.partition("/")
    if not slash or not re.search(r"[.:]", host):
        host, rest = "", uri
    repository, _, tag = rest.partition(":")
    return host, repository, tag


@rule(
    "image-tag",
    "error",
    consequence=_CHECK_FAILS,
    fix="give the image a tag of lower-case letters, digits, . _ and -",
)
def image_tag(view: JobView) -> Iterator[Violation]:
    """The image check allows fewer tags than Docker: upper-case letters are refused."""
    for path, uri in _images(view):
        tag = _split(uri)[2]
        if tag and "@" not in uri and not _TAG.fullmatch(tag):
            yield Violation(path, f"the tag {tag!r} is refused")


@rule(
    "image-digest",
    "error",
    consequence=_CHECK_FAILS,
    fix="use a tag in place of the digest",
)
def image_digest(view: JobView) -> Iterator[Violation]:
    """The image check does not know name@sha256:… although Docker would accept it."""
    for path, uri in _images(view):
        if "@" in uri:
            yield Violation(path, f"{uri!r} names the image by its digest")


@rule(
    "image-name",
    "error",
    consequence=_CHECK_FAILS,
    fix="write [registry[:port]/]name[:tag] in lower case, without docker:// or https://",
)
def image_name(view: JobView) -> Iterator[Violation]:
    """A repository has lower-case letters, digits, . _ - and / only."""
    for path, uri in _images(view):
        _, repository, _ = _split(uri)
        if "://" in uri or ("@" not in uri and not _REPOSITORY.fullmatch(repository)):
            yield Violation(path, f"{uri!r} is not an image name")


@rule(
    "image-latest",
    "warning",
    consequence="the image is pulled at every start of every task: nodes or attempts may run "
    "different code",
    fix="give the image a tag of its own for each version",
)
def image_latest(view: JobView) -> Iterator[Violation]:
    """imagePullPolicy is Always, and a retried job starts with whatever the tag then names."""
    for path, uri in _images(view):
        if "@" not in uri and "://" not in uri and _split(uri)[2] in ("", "latest"):
            yield Violation(path, f"{uri!r} may name another image tomorrow")


@rule(
    "image-docker-hub",
    "warning",
    target="ltp",
    consequence="LTP answers 400 InvalidImageError where the cluster allows its own registry only",
    fix="push the image to the cluster's registry and name it with the registry's host",
)
def image_docker_hub(view: JobView) -> Iterator[Violation]:
    """An image without a registry's host comes from Docker Hub, which LTP clusters often
    disable."""
    for path, uri in _images(view):
        if "://" not in uri and _split(uri)[0] in ("", "docker.io", "index.docker.io"):
            yield Violation(path, f"{uri!r} comes from Docker Hub")


@rule(
    "image-auth-type",
    "error",
    consequence="the server answers 500: its template engine renders text only",
    fix="put the value between quotes",
)
def auth_type(view: JobView) -> Iterator[Violation]:
    """The server renders every value of auth, also of keys that its schema does not know."""
    for path, _ in view.prerequisites:
        for key, value in view.mapping(*path, "auth").items():
            known = key in ("username", "password", "registryuri")  # these the schema checks
            if not known and not isinstance(value, str):
                yield Violation((*path, "auth", key), f"{key} is not text")


@rule(
    "image-auth-registryuri",
    "error",
    consequence=f"{_CHECK_FAILS}: it uses a registry that it was never told",
    fix="add registryuri: the image's registry, https://index.docker.io/v1/ for Docker Hub",
)
def auth_registryuri(view: JobView) -> Iterator[Violation]:
    """In a job with secrets the image check logs in with auth, and needs all three of its keys."""
    for path, _, auth in _logins(view):
        complete = auth.get("username") and auth.get("password")
        if view.secrets and complete and "registryuri" not in auth:
            yield Violation((*path, "auth", "registryuri"), "registryuri is missing")


@rule(
    "image-auth-unused",
    "error",
    consequence=f"{_CHECK_FAILS}: the registry answers 401 to a check without a login",
    fix="put the password under secrets, and write username, password: <% $secrets.name %> and registryuri",
)
def auth_unused(view: JobView) -> Iterator[Violation]:
    """The image check uses auth only in a job that has secrets, and only with a username and a password.
    Kubernetes would pull the image, but the task does not get that far; LTP's check leaves Azure's
    registries out."""
    for path, uri, auth in _logins(view):
        complete = auth.get("username") and auth.get("password")
        if not view.secrets or not complete:
            what = "the job has no secrets" if complete else "username or password is missing"
            azure = _split(uri)[0].endswith(".azurecr.io")
            target: Target = "openpai" if azure else "both"
            yield Violation((*path, "auth"), f"auth is not used: {what}", target=target)


@rule(
    "image-auth-registry",
    "error",
    consequence=f"{_CHECK_FAILS}: it asks the wrong registry, or asks Docker Hub without the login",
    fix="write the registry of the image as registryuri, https://index.docker.io/v1/ for Docker Hub",
)
def auth_registry(view: JobView) -> Iterator[Violation]:
    """The image check asks the registry that auth names; for an image of Docker Hub it drops a login whose
    registryuri is not index.docker.io."""
    for path, uri, auth in _logins(view):
        named = auth.get("registryuri")
        if view.secrets and isinstance(named, str) and "<%" not in named + uri:
            host = _split(uri)[0] or "index.docker.io"
            if _host(named) != host:
                message = f"the image comes from {host}, the login is for {_host(named)}"
                yield Violation((*path, "auth", "registryuri"), message)


def _logins(view: JobView) -> Iterator[tuple[Path, str, dict[str, object]]]:
    """Path, uri and auth of each image that has one."""
    for path, item in view.prerequisites:
        auth, uri = item.get("auth"), item.get("uri")
        if item.get("type") == "dockerimage" and isinstance(auth, dict) and isinstance(uri, str):
            yield path, uri, auth


def _host(registryuri: str) -> str:
    return re.sub(r"^https?://", "", registryuri.strip()).partition("/")[0]


@rule(
    "image-auth-plain",
    "warning",
    consequence="everybody who may see the job's configuration can read the password",
    fix="put it under secrets and write <% $secrets.name %>",
)
def auth_plain(view: JobView) -> Iterator[Violation]:
    """The server masks only what stands under secrets; auth may refer to it."""
    for path, _ in view.prerequisites:
        password = view.text(*path, "auth", "password")
        if password and "$secrets" not in password:
            yield Violation((*path, "auth", "password"), "the job file contains a password")

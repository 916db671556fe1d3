"""What the web portal refuses although the server accepts it: its schema is stricter."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ggs.pai.job.document import Path, walk
from ggs.pai.validate.finding import JobView, Violation, rule

_REFUSED = "the portal refuses the file; REST accepts it"
_PLUGIN_KEYS = ("plugin", "parameters", "failurePolicy", "hook")
_SSH_KEYS = ("jobssh", "sshbarrier", "sshbarrierTimeout", "userssh")


@rule(
    "portal-plugin-key",
    "warning",
    consequence=_REFUSED,
    fix="submit with `pai job submit`, or remove the key",
)
def plugin_key(view: JobView) -> Iterator[Violation]:
    """The portal knows plugin, parameters, failurePolicy and hook in a plugin's entry, and not
    taskroles."""
    for path, item in view.plugins():
        for key in item:
            if key not in _PLUGIN_KEYS:
                yield Violation((*path, key), f"the portal does not know {key} here")


@rule(
    "portal-plugin-parameters",
    "warning",
    consequence=_REFUSED,
    fix="for ssh write jobssh: true or false, and only jobssh, sshbarrier, sshbarrierTimeout, "
    "userssh; for tensorboard port: <number> and logdir: {name: path}, and nothing else",
)
def plugin_parameters(view: JobView) -> Iterator[Violation]:
    """The portal checks the parameters of ssh and tensorboard."""
    for path, item in view.plugins():
        parameters = (*path, "parameters")
        known = {"ssh": _SSH_KEYS, "tensorboard": ("port", "logdir")}.get(str(item.get("plugin")))
        if known is None:
            continue
        for key in view.mapping(*parameters):
            if key not in known:
                yield Violation((*parameters, key), f"the portal does not know {key} here")
        if known is not _SSH_KEYS:
            for key in ("port", "logdir"):
                if not view.document.get(*parameters, key):
                    yield Violation((*parameters, key), f"{key} is missing or empty")
        elif not isinstance(view.document.get(*parameters, "jobssh"), bool):
            yield Violation((*parameters, "jobssh"), "jobssh is not true or false")


@rule(
    "portal-deployment-name",
    "warning",
    consequence=_REFUSED,
    fix="use letters, digits and _",
)
def deployment_name(view: JobView) -> Iterator[Violation]:
    """The server allows - in a deployment's name, the portal does not."""
    for path, item in view.deployments:
        name = item.get("name")
        if isinstance(name, str) and re.fullmatch(r"[a-zA-Z0-9_-]*-[a-zA-Z0-9_-]*", name):
            yield Violation((*path, "name"), f"the portal refuses the name {name!r}")


@rule(
    "portal-empty-text",
    "warning",
    consequence=_REFUSED,
    fix="write some text, or remove the key",
)
def empty_text(view: JobView) -> Iterator[Violation]:
    """The portal refuses empty text wherever the protocol has text."""
    places: list[Path] = [("contributor",), ("description",), ("version",)]
    places += [(*path, key) for path, item in view.prerequisites for key in item]
    places += [(*path, "auth", key) for path, _ in view.prerequisites
               for key in view.mapping(*path, "auth")]  # fmt: skip
    for role in view.roles:
        places += [("taskRoles", role, key) for key in ("dockerImage", "data", "output", "script")]
        below: Path = ("taskRoles", role, "commands")
        places += [path for path, _ in walk(view.sequence(*below), below)]
    for path in places:
        if view.document.get(*path) == "":
            yield Violation(path, "the text is empty")


@rule(
    "portal-role-key",
    "warning",
    consequence=_REFUSED,
    fix="remove it: the one at the top of the file counts",
)
def role_key(view: JobView) -> Iterator[Violation]:
    """A role or deployment may state protocolVersion for the server, but not for the portal."""
    for role, values in view.roles.items():
        if "protocolVersion" in values:
            here = ("taskRoles", role, "protocolVersion")
            yield Violation(here, "protocolVersion in a role")
    for path, item in view.deployments:
        if "protocolVersion" in item:
            yield Violation((*path, "protocolVersion"), "protocolVersion in a deployment")


@rule(
    "portal-defaults",
    "warning",
    consequence=_REFUSED,
    fix="write virtualCluster and deployment as text, and nothing else",
)
def defaults(view: JobView) -> Iterator[Violation]:
    """defaults is open for the server; the portal knows virtualCluster and deployment, as text."""
    for key, value in view.mapping("defaults").items():
        if key not in ("virtualCluster", "deployment"):
            yield Violation(("defaults", key), f"the portal does not know {key} here")
        elif not isinstance(value, str) and key == "virtualCluster":
            yield Violation(("defaults", key), "virtualCluster is not text")


@rule(
    "portal-auth-key",
    "warning",
    consequence=_REFUSED,
    fix="write username, password and registryuri",
)
def auth_key(view: JobView) -> Iterator[Violation]:
    """An image's auth is open for the server; the portal knows username, password, registryuri."""
    for path, _ in view.prerequisites:
        for key in view.mapping(*path, "auth"):
            if key not in ("username", "password", "registryuri"):
                yield Violation((*path, "auth", key), f"the portal does not know {key} here")


@rule(
    "portal-infiniband",
    "warning",
    consequence=_REFUSED,
    fix="write true or false",
)
def infiniband(view: JobView) -> Iterator[Violation]:
    """The server takes any value of infiniband, the portal true or false."""
    for role in view.roles:
        path = ("taskRoles", role, "extraContainerOptions", "infiniband")
        value = view.document.get(*path)
        if value is not None and not isinstance(value, bool):
            yield Violation(path, "infiniband is not true or false")


@rule(
    "portal-ports-null",
    "warning",
    consequence=_REFUSED,
    fix="remove the key, or write a label: ports: {sync: 1}",
)
def ports_null(view: JobView) -> Iterator[Violation]:
    """ports without a value is the same as no ports for the server; the portal wants a mapping."""
    for role in view.roles:
        path = ("taskRoles", role, "resourcePerInstance", "ports")
        if "ports" in view.mapping(*path[:-1]) and view.document.get(*path) is None:
            yield Violation(path, "ports has no value")

"""Runtime plugins: ssh, tensorboard and the others."""

from __future__ import annotations

from collections.abc import Iterator

from ggs.pai.job.document import Path
from ggs.pai.job.plugins import LTP_PLUGINS, PLUGINS
from ggs.pai.job.protocol import PLUGIN_PREFIX
from ggs.pai.validate.finding import JobView, Target, Violation, rule
from ggs.pai.validate.init_container import INIT_FAILS

_PORTS_OF_JOBS = range(15000, 40000)


@rule(
    "plugin-unknown",
    "error",
    consequence=INIT_FAILS + ", whatever the failurePolicy",
    fix=f"use one of {', '.join(PLUGINS)}",
)
def unknown_plugin(view: JobView) -> Iterator[Violation]:
    """The runtime has the plugins ssh, tensorboard, cmd, git and teamwise_storage; LTP's has dind too."""
    for path, item in view.plugins():
        yield from _unknown((*path, "plugin"), item.get("plugin"))
    for path, item in view.prerequisites:
        plugin = item.get("plugin")
        if isinstance(plugin, str) and plugin.startswith(f"{PLUGIN_PREFIX}."):
            yield from _unknown((*path, "plugin"), plugin.removeprefix(f"{PLUGIN_PREFIX}."))


def _unknown(path: Path, name: object) -> Iterator[Violation]:
    if isinstance(name, str) and name not in PLUGINS:
        target: Target = "openpai" if name in LTP_PLUGINS else "both"
        yield Violation(path, f"there is no plugin {name!r}", target=target)


@rule(
    "plugin-failure-policy",
    "warning",
    consequence="any other word counts as fail",
    fix="write fail or ignore",
)
def failure_policy(view: JobView) -> Iterator[Violation]:
    """failurePolicy is fail (the default) or ignore."""
    for path, item in view.plugins():
        policy = item.get("failurePolicy", "fail")
        if policy not in ("fail", "ignore"):
            yield Violation((*path, "failurePolicy"), f"failurePolicy is {policy!r}")


@rule(
    "plugin-role-unknown",
    "warning",
    consequence="the plugin silently does not run in that role",
    fix="use the names of roles",
)
def plugin_role(view: JobView) -> Iterator[Violation]:
    """taskroles limits a plugin to some roles."""
    for path, _ in view.plugins():
        for index, role in enumerate(view.sequence(*path, "taskroles")):
            if isinstance(role, str) and role not in view.roles:
                yield Violation((*path, "taskroles", index), f"there is no role {role!r}")


@rule(
    "plugin-deprecated",
    "warning",
    consequence="it works on OpenPAI 1.8.1 only because the server rewrites it",
    fix="write extras.storages: [{name: …}]",
)
def deprecated_plugin(view: JobView) -> Iterator[Violation]:
    """teamwise_storage was replaced by extras.storages, and is dropped when both are there."""
    for path, item in view.plugins():
        if item.get("plugin") == "teamwise_storage":
            yield Violation((*path, "plugin"), "teamwise_storage is deprecated")


@rule(
    "plugin-ssh",
    "warning",
    consequence="where the image has no sshd it is installed from the internet before the commands "
    "run; without root or network the job fails",
    fix="add failurePolicy: ignore, or remove the plugin",
)
def ssh_plugin(view: JobView) -> Iterator[Violation]:
    """The ssh plugin installs openssh-server with apt-get if it is missing."""
    for path, item in view.plugins():
        if item.get("plugin") == "ssh" and item.get("failurePolicy") != "ignore":
            yield Violation(path, "a failure of the ssh plugin fails the job")


@rule(
    "plugin-ssh-barrier",
    "warning",
    consequence="the tasks wait for each other over ssh, which has no keys on OpenPAI 1.8: after "
    "30 minutes they exit with 249, never retried",
    fix="write jobssh: false and sshbarrier: false",
)
def ssh_barrier(view: JobView) -> Iterator[Violation]:
    """jobssh is broken in OpenPAI 1.8's runtime and often disabled on LTP; the ssh barrier
    deadlocks when a task ends early."""
    for path, item in view.plugins():
        if item.get("plugin") != "ssh":
            continue
        for key in ("jobssh", "sshbarrier"):
            if view.document.get(*path, "parameters", key) is True:
                yield Violation((*path, "parameters", key), f"{key} is true")


@rule(
    "plugin-tensorboard",
    "warning",
    consequence="the job fails where the image has no tensorboard or the log folder does not exist",
    fix="add failurePolicy: ignore, and create the folder in a command",
)
def tensorboard_plugin(view: JobView) -> Iterator[Violation]:
    """The tensorboard plugin runs the image's own tensorboard on task 0 of the first role."""
    for path, item in view.plugins():
        if item.get("plugin") == "tensorboard" and item.get("failurePolicy") != "ignore":
            yield Violation(path, "a failure of the tensorboard plugin fails the job")


@rule(
    "plugin-tensorboard-port",
    "warning",
    consequence="another job on the node may use the same port: tensorboard does not start",
    fix="choose an uncommon port between 1024 and 15000",
)
def tensorboard_port(view: JobView) -> Iterator[Violation]:
    """Tasks share their node's network; 6006 is everybody's choice, and OpenPAI gives ports from
    15000 to 39999 to its jobs."""
    for path, item in view.plugins():
        port = view.integer(*path, "parameters", "port")
        if item.get("plugin") != "tensorboard" or port is None:
            continue
        if port == 6006 or not 1024 <= port <= 65535 or port in _PORTS_OF_JOBS:
            yield Violation((*path, "parameters", "port"), f"port {port} is likely to be taken")

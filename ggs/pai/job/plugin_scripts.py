"""The scripts that a runtime plugin adds to a task, before and after the user's.

They are the runtime's own, byte by byte, or its failure. Source: openpai-runtime 0.1.12,
``plugins/*/init.py``; LTP 1.5's are equal but for the texts of ``ssh``, and has ``dind`` besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ggs.pai.job.plugins import PluginEntry, parameters
from ggs.pai.job.stored import InitFailure

FOLDER = "/usr/local/pai/plugins"


@dataclass(frozen=True)
class PluginScripts:
    """What one plugin adds to a task. Empty text: no such script."""

    name: str
    parameters: Any
    """As the plugin itself gets them."""
    before: str = ""
    after: str = ""
    files: Mapping[str, str] | None = None
    """Scripts of the plugin's own, by absolute path in the container."""
    failure: str = ""
    """Why its own script failed, where failurePolicy makes the init container go on."""


def prepare(
    entry: PluginEntry, stored: Any, secrets: object, role: str, *, first_task: bool
) -> PluginScripts:
    """The scripts of one plugin for a task of ``role``; ``first_task``: task 0 of the file's first role.

    Raises:
        InitFailure: the init container fails, and the task with it.
    """
    if "plugin" not in entry.config:
        raise InitFailure("KeyError: 'plugin'")
    name = entry.config["plugin"]
    values = parameters(entry, stored, secrets, role)
    if name not in _PREPARE:
        raise InitFailure(f"there is no plugin {name!r}")
    policy = entry.config.get("failurePolicy", "fail")
    output = _Output(policy)
    failure = ""
    try:
        _PREPARE[name](values, output, first_task)
    except (KeyError, TypeError, AttributeError, ValueError, AssertionError, RuntimeError) as error:
        failure = f"{name} fails, {type(error).__name__}: {error}"
        if policy != "ignore":
            raise InitFailure(failure) from None
    return PluginScripts(name, values, output.before, output.after, output.files, failure)


class _Output:
    """Collects what a plugin's own script writes, up to the point where it fails."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self.before = ""
        self.after = ""
        self.files: dict[str, str] = {}

    def script(self, commands: Any) -> str:
        if not commands:
            return ""
        lines = []
        for line in commands:
            if not isinstance(line, str):
                raise TypeError(f"the command {line!r} is not text")
            lines.append(line + "\n")
        if self._policy.lower() == "ignore":
            return "".join(["set +o errexit\n", *lines, "set -o errexit\n"])
        return "".join(["set -o errexit\n", *lines])


def _cmd(values: Any, output: _Output, _first_task: bool) -> None:
    if not values:
        return
    if "callbacks" not in values:
        if "preCommands" in values:
            output.before = output.script(values["preCommands"])
        if "postCommands" in values:
            output.after = output.script(values["postCommands"])
        return
    for other in ("preCommands", "postCommands"):
        if other in values:
            raise AssertionError(f"callbacks beside {other}")
    before: list[Any] = []
    after: list[Any] = []
    for callback in values["callbacks"]:
        if callback["event"] == "taskStarts":
            before.extend(callback["commands"])
        elif callback["event"] == "taskSucceeds":
            after.extend(callback["commands"])
    output.before = output.script(before)
    output.after = output.script(after)


def _git(values: Any, output: _Output, _first_task: bool) -> None:
    if not values or "repo_uri" not in values:
        raise ValueError("repo_uri is missing")
    values["repo_uri"]
    if "clone_dir" in values:
        where = values["clone_dir"]
        code = f"{FOLDER}/git/../../code"
        output.before = output.script(
            [
                f"{FOLDER}/git/check_clone_dir.sh {where}",
                f"mkdir -p {where}",
                f"mv -f {code}/* {where}",
            ]
        )


def _ssh(values: Any, output: _Output, _first_task: bool) -> None:
    """Fails as the plugin does; what it writes installs sshd, which is the cluster's business."""
    if not values:
        return
    if "jobssh" in values:
        values["jobssh"]
    if "userssh" in values:
        user = values["userssh"]
        key = user["value"] if "value" in user else ""  # noqa: SIM401  text has no get
        if "type" in user and key != "" and not isinstance(key, str):
            raise TypeError("userssh.value is not text")


def _tensorboard(values: Any, output: _Output, first_task: bool) -> None:
    if not first_task or not values:
        return
    folders = values["logdir"]
    if len(folders) == 0:
        raise RuntimeError("logdir could not be empty")
    port = values["port"]
    listed = ",".join(f"{name}:{path}" for name, path in folders.items())
    first = next(iter(folders.values()))
    where = f"--logdir_spec={listed}" if len(folders) > 1 else f"--logdir={first}"
    script = f"{FOLDER}/tensorboard/tensorboard.sh"
    output.files = {
        script: _TENSORBOARD.format(listed=listed, where=where, port=port),
    }
    output.before = output.script([f"chmod u+x {script}", script])


# What the runtime's own script does for the two versions of tensorboard. Its third case prints a text and
# starts nothing; `RUNTIME_LOG_PIPE` is a file's name there, without its dollar.
_TENSORBOARD = """\
#!/bin/bash
set -o errexit -o nounset -o pipefail
version=$(tensorboard --version_tb)
case ${{version:0:1}} in
  1) tensorboard --logdir={listed} --port={port} & ;;
  2) tensorboard {where} --port={port} --bind_all 2>&1 > RUNTIME_LOG_PIPE & ;;
  *) echo "tensorboard $version cannot be started" ;;
esac
"""


def _nothing(_values: Any, _output: _Output, _first_task: bool) -> None:
    pass


_PREPARE: dict[str, Callable[[Any, _Output, bool], None]] = {
    "cmd": _cmd,
    "git": _git,
    "ssh": _ssh,
    "tensorboard": _tensorboard,
    "teamwise_storage": _nothing,
}

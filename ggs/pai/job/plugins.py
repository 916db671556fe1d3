"""Runtime plugins as the init container prepares them: scripts to run before and after the user's.

A plugin's parameters go through Python's ``str``, a replacement of references in that text, and PyYAML. On
the way an apostrophe beside a quote ends the text too early, a line break becomes the two characters
``\\n``, and a backslash can double. The scripts made here are the same, byte by byte, or the same failure.
Source: openpai-runtime 0.1.12, ``init.d/initializer.py``, ``plugins/*/init.py``; LTP 1.5's are equal but for
``dind`` and the texts of ``ssh``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from ggs.pai.job.protocol import PLUGIN_PREFIX
from ggs.pai.job.stored import InitFailure

PLUGINS = ("ssh", "tensorboard", "cmd", "git", "teamwise_storage")
LTP_PLUGINS = (*PLUGINS, "dind")
FOLDER = "/usr/local/pai/plugins"

_REFERENCE = re.compile(r"<%(\s*)\$([\s\S]*?)(\s*)%>")
_INDEXED = re.compile(r"([\s\S]*?)\[(\s*)([0-9]+)(\s*)\]")

Path = tuple["str | int", ...]


class ReferenceFailure(InitFailure):
    """A reference in a plugin's parameters names nothing, or something that is not text."""


class TextFailure(InitFailure):
    """A plugin's parameters, written as Python's text, cannot be read as YAML."""


@dataclass(frozen=True)
class PluginEntry:
    """One plugin of a role, as the stored job file has it, and where in the file it stands."""

    path: Path
    config: dict[Any, Any]


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


def entries(stored: Any, role: str) -> list[PluginEntry]:
    """The plugins of a role (its name as FrameworkController writes it), in the order they run.

    Raises:
        InitFailure: the init container fails before any plugin is prepared.
    """
    try:
        spec = stored["taskRoles"][role]
    except (KeyError, TypeError, IndexError):
        raise InitFailure(
            f"KeyError: {role!r}: the init container does not find this role"
        ) from None
    try:
        return [*_of_prerequisites(stored, spec), *_of_extras(stored, role)]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InitFailure(f"{type(error).__name__}: {error}") from None


def _of_prerequisites(stored: Any, spec: Any) -> list[PluginEntry]:
    if "prerequisites" not in spec or "prerequisites" not in stored:
        return []
    by_name = {item["name"]: number for number, item in enumerate(stored["prerequisites"])}
    found = []
    for name in spec["prerequisites"]:
        number = by_name[name]
        keys = copy.deepcopy(stored["prerequisites"][number])
        if "plugin" not in keys or not keys["plugin"].startswith(PLUGIN_PREFIX):
            continue
        config = {"plugin": keys.pop("plugin")[len(PLUGIN_PREFIX) + 1 :]}
        if "failurePolicy" in keys:
            config["failurePolicy"] = keys.pop("failurePolicy")
        keys.pop("type", None)
        found.append(PluginEntry(("prerequisites", number), {**config, "parameters": keys}))
    return found


def _of_extras(stored: Any, role: str) -> list[PluginEntry]:
    if "extras" not in stored or PLUGIN_PREFIX not in stored["extras"]:
        return []
    found = []
    for number, config in enumerate(stored["extras"][PLUGIN_PREFIX]):
        if "taskroles" in config and role not in config["taskroles"]:
            continue
        if not isinstance(config, dict):
            raise TypeError(f"the plugin {config!r} is no mapping")
        found.append(PluginEntry(("extras", PLUGIN_PREFIX, number), copy.deepcopy(config)))
    return found


def parameters(entry: PluginEntry, stored: Any, secrets: object, role: str) -> Any:
    """An entry's parameters as the plugin gets them: references replaced, through text and back.

    Raises:
        TextFailure: the text that comes out is not YAML.
        ReferenceFailure: a reference cannot be replaced.
    """
    written = str(entry.config.get("parameters", ""))
    context = {**stored, "secrets": secrets}
    try:
        text = _REFERENCE.sub(lambda match: _referred(match, context, role), written)
    except _NotText as error:
        raise ReferenceFailure(str(error)) from None
    except (KeyError, TypeError, IndexError, StopIteration, UnboundLocalError) as error:
        raise ReferenceFailure(f"{type(error).__name__}: {error}") from None
    try:
        value = yaml.safe_load(text)
        yaml.safe_load(yaml.safe_dump(value))
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        problem = getattr(error, "problem", None) or str(error)
        message = f"the parameters, written as Python's text, are not YAML: {problem}"
        raise TextFailure(message) from None
    return value


class _NotText(Exception):
    pass


def _referred(match: re.Match[str], context: Mapping[Any, Any], role: str) -> str:
    reference = re.sub(r"(\s*)%>", "", re.sub(r"<%(\s*)\$", "", match.group(0)))
    root, *steps = reference.split(".")
    value: Any
    if root in ("parameters", "secrets"):
        value = context[root]
    elif root in ("script", "output", "data"):
        wanted = context["taskRoles"][role][root]
        value = next(
            item
            for item in context["prerequisites"]
            if item["type"] == root and item["name"] == wanted
        )
    else:
        raise UnboundLocalError(f"<% ${reference} %> names nothing")
    for step in steps:
        indexes = _INDEXED.findall(step)
        if not indexes:
            value = value[step]
        for name, _, index, _ in indexes:
            value = (value[name] if name else value)[int(index)]
    if not isinstance(value, str):
        raise _NotText(f"<% ${reference} %> is not text")
    return value


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

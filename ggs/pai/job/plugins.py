"""The runtime plugins of a role, and their parameters as the init container hands them over.

Parameters go through Python's ``str``, a replacement of references in that text, and PyYAML. On the way an
apostrophe beside a quote ends the text too early, a line break becomes the two characters ``\\n``, and a
backslash can double. Source: openpai-runtime 0.1.12, ``init.d/initializer.py``; LTP 1.5's is the same.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from ggs.pai.job.protocol import PLUGIN_PREFIX
from ggs.pai.job.stored import InitFailure

PLUGINS = ("ssh", "tensorboard", "cmd", "git", "teamwise_storage")
LTP_PLUGINS = (*PLUGINS, "dind")

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

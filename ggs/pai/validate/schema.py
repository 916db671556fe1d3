"""The server's schema: what a POST answers 400 to. The complaints are those of `ggs.pai.job.model.Job`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from ggs.pai.job import protocol
from ggs.pai.job.document import Path
from ggs.pai.job.model import Job
from ggs.pai.job.scalars import to_text
from ggs.pai.validate.finding import JobView, Target, Violation, rule
from ggs.text import shorten

_REFUSED = "the server answers 400 InvalidProtocolError and stores nothing"

# Keys that people write where they do not belong, and where OpenPAI reads them.
_BELONGS = {
    "hivedScheduler": "extras.hivedScheduler",
    "gangAllocation": "extras.gangAllocation",
    "storages": "extras.storages",
    "jobStatusChangeNotification": "extras.jobStatusChangeNotification",
    "com.microsoft.pai.runtimeplugin": "extras",
    "virtualCluster": "defaults.virtualCluster",
    "deployment": "defaults.deployment",
    "jobRetryCount": "the top of the file",
    "shmMB": "taskRoles.<role>.extraContainerOptions.shmMB",
    "infiniband": "taskRoles.<role>.extraContainerOptions.infiniband",
    "cpu": "taskRoles.<role>.resourcePerInstance.cpu",
    "gpu": "taskRoles.<role>.resourcePerInstance.gpu",
    "memoryMB": "taskRoles.<role>.resourcePerInstance.memoryMB",
    "ports": "taskRoles.<role>.resourcePerInstance.ports",
    "instances": "taskRoles.<role>.instances",
    "minFailedInstances": "taskRoles.<role>.completion.minFailedInstances",
    "minSucceededInstances": "taskRoles.<role>.completion.minSucceededInstances",
    "commands": "taskRoles.<role>.commands",
    "dockerImage": "taskRoles.<role>.dockerImage",
    "image": "a prerequisite of type dockerimage",
    "env": "the commands, as `export NAME=value`: a role cannot declare variables",
    "environment": "the commands, as `export NAME=value`: a role cannot declare variables",
}

_KINDS = {
    "missing": "missing",
    "union_tag_not_found": "missing",
    "extra_forbidden": "unknown",
    "too_short": "empty",
    "literal_error": "value",
    "union_tag_invalid": "value",
    "string_pattern_mismatch": "value",
    "string_too_long": "value",
    "greater_than_equal": "value",
}


# What to write instead, by the model's kind of complaint.
_ADVICE = {
    "int_type": "write an integer, without quotes",
    "string_type": "write text: put it between quotes",
    "list_type": "write a list",
    "dict_type": "write a mapping",
    "model_type": "write a mapping",
    "model_attributes_type": "write a mapping",
    "null": "write a value after the colon, or remove the key",
    "string_too_long": "use at most 255 characters",
}


def _complaints(view: JobView, *wanted: str) -> Iterator[tuple[Path, ErrorDetails, Target | None]]:
    """The model's complaints of some kinds, one for each path, and who alone has it.

    `extras` is not part of the server's schema and has its own rules.
    """
    on_ltp = {path for path, _ in view.ltp_refusals}
    for path, error in view.refusals:
        if (path[:1] != ("extras",) or len(path) == 1) and _KINDS.get(
            error["type"], "type"
        ) in wanted:
            yield path, error, None if path in on_ltp else "openpai"


def _spelled(value: object) -> str:
    """`value` as a person would recognise it in the file."""
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = to_text(value)
    text = shorten(text, 60)
    return f"the text {text!r}" if isinstance(value, str) else text


def _advice(error: ErrorDetails, default: str = "") -> str:
    if error["type"] == "string_pattern_mismatch":
        if error["loc"][-1] == "[key]":
            return "use letters and digits; start with a letter"
        return "use letters, digits, - and _"
    if error["type"] in _ADVICE:
        return _ADVICE[error["type"]]
    context = error.get("ctx", {})
    expected = context.get("expected", context.get("expected_tags"))
    if expected is not None:
        return f"write {expected}"
    return f"use at least {context['ge']}" if "ge" in context else default


@rule(
    "schema-missing",
    "error",
    consequence=_REFUSED,
    fix="add the key",
)
def missing(view: JobView) -> Iterator[Violation]:
    """The server's schema requires protocolVersion, name, type and taskRoles; in a role
    dockerImage, resourcePerInstance (cpu, memoryMB, gpu) and commands; in a prerequisite name and
    type, and uri for an image."""
    for path, _, target in _complaints(view, "missing"):
        yield Violation(path, f"{path[-1]} is missing", target=target)


@rule(
    "schema-unknown-key",
    "error",
    consequence=_REFUSED,
    fix="remove the key",
)
def unknown_key(view: JobView) -> Iterator[Violation]:
    """The server refuses any key that its schema does not name, except in parameters, secrets,
    extras, defaults, and prerequisites that are not images."""
    for path, _, _ in _complaints(view, "unknown"):
        key = str(path[-1])
        if path == ("jobType",):
            continue
        close = difflib.get_close_matches(key, _siblings(path), 1)
        if key in _BELONGS:
            yield Violation(path, f"{key} does not belong here", f"move it to {_BELONGS[key]}")
        elif close:
            yield Violation(path, f"the key {key} is unknown", f"did you mean {close[0]}?")
        else:
            yield Violation(path, f"the key {key} is unknown")


def _siblings(path: Path) -> list[str]:
    """The keys that the protocol knows beside the last of `path`."""
    model: type[BaseModel] = Job
    if path[0] == "prerequisites":
        model = protocol.DockerImage
    elif path[0] == "deployments":
        model = protocol.RoleCommands
    elif path[-2:-1] == ("resourcePerInstance",):
        model = protocol.ResourcePerInstance
    elif path[-2:-1] == ("completion",):
        model = protocol.Completion
    elif path[0] == "taskRoles":
        model = protocol.RoleSpec
    return [field.alias or name for name, field in model.model_fields.items()]


@rule(
    "schema-empty",
    "error",
    consequence=_REFUSED,
    fix="add an entry, or leave the key out where it is optional",
)
def empty(view: JobView) -> Iterator[Violation]:
    """prerequisites, deployments, taskRoles, commands, preCommands, postCommands and ports may
    not be empty."""
    for path, _, target in _complaints(view, "empty"):
        yield Violation(path, f"{path[-1]} is empty", target=target)


@rule(
    "schema-value",
    "error",
    consequence=_REFUSED,
    fix="write a value that the schema allows",
)
def value(view: JobView) -> Iterator[Violation]:
    """protocolVersion is 2, type is job; names have 1 to 255 letters, digits, - and _; roles and
    port labels start with a letter or _ and have no -; instances is at least 1, jobRetryCount at
    least 0; a prerequisite's type is dockerimage, script, output or data."""
    for path, error, target in _complaints(view, "value"):
        # A key that is wrong is reported at the key, not with the value below it.
        written = path[-1] if error["loc"][-1] == "[key]" else view.document.get(*path)
        message = f"{_spelled(written)} is not allowed here"
        yield Violation(path, message, _advice(error), target=target)


@rule(
    "schema-type",
    "error",
    consequence=_REFUSED,
    fix="write a value of the type that the schema asks for",
)
def wrong_type(view: JobView) -> Iterator[Violation]:
    """The server converts nothing: a number in quotes is not an integer, and an unquoted number
    or truth value is not text (commands are the usual place)."""
    for path, error, target in _complaints(view, "type"):
        if path:
            message = f"{_spelled(view.document.get(*path))} has the wrong type"
            # The schema forgets to say that these are mappings, and the code behind it assumes it.
            forgotten = path[-1] in ("taskRoles", "ports") and path[-2:-1] != ("taskRoles",)
            consequence = "the server answers 500, or stores a job that never runs"
            text = consequence if forgotten else ""
            yield Violation(path, message, _advice(error), text, target=target)
        else:
            yield Violation(path, "the file is not a mapping of keys to values")


@rule(
    "extras-type",
    "error",
    consequence="the server's schema does not look here: its code then fails with 500, or the "
    "task's init container does, on every attempt",
    fix="write a value of the type that OpenPAI's code reads",
)
def extras_type(view: JobView) -> Iterator[Violation]:
    """storages is a list of mappings with a name, com.microsoft.pai.runtimeplugin a list of
    mappings with plugin."""
    for path, error in view.refusals:
        if path[:1] != ("extras",) or path[1:2] == ("hivedScheduler",) or len(path) == 1:
            continue
        if error["type"] in ("missing", "too_short"):
            state = "missing" if error["type"] == "missing" else "empty"
            yield Violation(path, f"{path[-1]} is {state}", "add it, or remove what it belongs to")
        else:
            message = f"{_spelled(view.document.get(*path))} is not allowed here"
            yield Violation(path, message, _advice(error))

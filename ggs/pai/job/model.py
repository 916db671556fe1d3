"""A whole job file: loading, checking against the server's schema, rendering.

What the schema lets through and OpenPAI gets wrong later is the business of `ggs.pai.validate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from ggs.errors import ConfigurationError
from ggs.pai.job import document, template
from ggs.pai.job.edit import edit
from ggs.pai.job.protocol import (
    Defaults,
    Deployment,
    DockerImage,
    Extras,
    Integer,
    Label,
    Model,
    Name,
    NotEmpty,
    OptionalText,
    Plugin,
    Prerequisite,
    ProtocolVersion,
    ResourcePerInstance,
    RoleSpec,
    Storage,
    Version,
)
from ggs.pai.job.stored import in_container

__all__ = [
    "DockerImage",
    "Job",
    "Plugin",
    "ResourcePerInstance",
    "RoleSpec",
    "Storage",
    "locate",
]


class Job(Model):
    """A whole job file."""

    protocol_version: ProtocolVersion
    name: Name
    type: Literal["job"]
    version: Version = None
    contributor: OptionalText = None
    description: OptionalText = None
    job_retry_count: Annotated[Integer, Field(ge=0)] = 0
    prerequisites: Annotated[list[Prerequisite], Field(min_length=1)] = Field(default=[])
    parameters: dict[str, Any] = Field(default={})
    secrets: dict[str, Any] = Field(default={})
    task_roles: Annotated[dict[Label, RoleSpec], NotEmpty]
    deployments: Annotated[list[Deployment], Field(min_length=1)] = Field(default=[])
    defaults: Defaults = Defaults()
    extras: Extras = Extras()

    @classmethod
    def load(cls, source: Path | str, overrides: Mapping[str, str] | None = None) -> Job:
        """The job in a file (a Path) or in a text (a str), its parameters overridden by name.

        ConfigurationError names the first thing that the server would refuse, and its line;
        `ggs.pai.validate` reports everything.
        """
        return cls.from_document(edit(document.load(source), overrides or {}))

    @classmethod
    def from_document(cls, parsed: document.Document) -> Job:
        """The job in a parsed file; ConfigurationError as `load`."""
        where = parsed.source
        if not isinstance(parsed.value, dict):
            raise ConfigurationError(f"{where}:1: a job file must be a mapping of keys to values")
        duplicates = [note for note in parsed.notes if note.rule == "yaml-duplicate-key"]
        if duplicates:
            raise ConfigurationError(f"{where}:{duplicates[0].line}: {duplicates[0].message}")
        try:
            return cls.model_validate(parsed.value)
        except ValidationError as error:
            path, message = locate(error.errors()[0], parsed)
            raise ConfigurationError(
                f"{where}:{parsed.line(path)}: {document.format_path(path)}: {message}; "
                "`pai job validate` lists every problem"
            ) from None

    def image(self, role: str) -> DockerImage:
        """The image of a role; ConfigurationError where no prerequisite has its name."""
        name = self.task_roles[role].docker_image
        for item in self.prerequisites:
            if isinstance(item, DockerImage) and item.name == name:
                return item
        raise ConfigurationError(
            f"taskRoles.{role}.dockerImage: no prerequisite of type dockerimage is named {name!r}"
        )

    def template_context(self, role: str) -> dict[str, object]:
        """What `<% $… %>` may name in this role's commands, without the secrets."""
        context: dict[str, object] = {"$parameters": self.parameters}
        for kind in ("script", "output", "data"):
            name = getattr(self.task_roles[role], kind)
            for item in self.prerequisites:
                if item.type == kind and item.name == name:
                    context[f"${kind}"] = item.model_dump(by_alias=True)
        return context

    def commands(self, role: str) -> list[str]:
        """The role's commands with those of the deployment in use around them, as written."""
        commands = self.task_roles[role].commands
        for deployment in self.deployments:
            if deployment.name == self.defaults.deployment and role in deployment.task_roles:
                around = deployment.task_roles[role]
                return [*around.pre_commands, *commands, *around.post_commands]
        return commands

    def render_commands(self, role: str) -> str:
        """What a task of `role` runs: trimmed, one command a line, references replaced.

        The server replaces parameters, the init container secrets, each with its own flaws
        (see `ggs.pai.job.template`).
        """
        text = "\n".join(command.strip() for command in self.commands(role))
        text = template.render(text, self.template_context(role))
        return template.render_secrets(text, in_container(self.secrets)) if self.secrets else text


def locate(error: ErrorDetails, parsed: document.Document) -> tuple[document.Path, str]:
    """Where in the file a complaint of the model belongs, and its text.

    The model's own location also names the branch of a union and `[key]`; only what the file
    contains is kept, and the name of a key that is missing.
    """
    path: document.Path = ()
    value = parsed.value
    for step in error["loc"]:
        if document.contains(value, step):
            value = value[step]  # type: ignore[index]  # contains() has looked
        elif error["type"] != "missing" or step != error["loc"][-1]:
            continue
        path = (*path, step)
    if error["type"] in ("union_tag_not_found", "union_tag_invalid"):
        path = (*path, "type")
    return path, error["msg"]

"""OpenPAI's job protocol, version 2, as a typed model.

The fields and types are those of the server's own schema (rest-server, config/v2/protocol.js):
what it answers 400 to, `Job` refuses, and nothing else. What the schema lets through and OpenPAI
gets wrong later is the business of `ggs.pai.validate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from ggs.errors import ConfigurationError
from ggs.pai import document, template
from ggs.pai.edit import rename, set_parameters

__all__ = [
    "PLUGIN_PREFIX",
    "DataPrerequisite",
    "DockerImage",
    "FilePrerequisite",
    "HivedScheduler",
    "Job",
    "Plugin",
    "ResourcePerInstance",
    "Storage",
    "TaskRole",
    "rename",
    "set_parameters",
]

PLUGIN_PREFIX: Final = "com.microsoft.pai.runtimeplugin"


def _refuse_null(value: object) -> object:
    if value is None:
        raise PydanticCustomError("null", "a value is missing after the colon")
    return value


def _refuse_empty(value: dict[str, Any]) -> dict[str, Any]:
    if not value:
        raise PydanticCustomError("too_short", "at least one entry is needed")
    return value


_NotNull = BeforeValidator(_refuse_null)
_NotEmpty = AfterValidator(_refuse_empty)
Text = Annotated[str, Strict()]
Integer = Annotated[int, Strict()]
# May be left out, but not be written as null.
OptionalText = Annotated[Text | None, _NotNull]
Version = Annotated[Text | Integer | Annotated[float, Strict()] | None, _NotNull]
Name = Annotated[Text, StringConstraints(pattern=r"^[a-zA-Z0-9_-]+$", max_length=255)]
Label = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
ProtocolVersion = Literal[2, "2"]


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class _OpenModel(_Model):
    model_config = ConfigDict(extra="allow")


class Auth(_OpenModel):
    """Login of a private registry; the values may use `<% $secrets.x %>`."""

    username: OptionalText = None
    password: OptionalText = None
    registryuri: OptionalText = None


class DockerImage(_Model):
    """A container image that task roles name in `dockerImage`."""

    type: Literal["dockerimage"]
    name: Name
    uri: Text
    protocol_version: ProtocolVersion = 2
    version: Version = None
    contributor: OptionalText = None
    description: OptionalText = None
    auth: Annotated[Auth | None, _NotNull] = None


class _Prerequisite(_OpenModel):
    name: Name
    protocol_version: ProtocolVersion = 2
    version: Version = None
    contributor: OptionalText = None
    description: OptionalText = None
    plugin: OptionalText = None
    require: list[Text] = []


class FilePrerequisite(_Prerequisite):
    """A script or output; with `plugin` its other keys are that plugin's parameters."""

    type: Literal["script", "output"]
    uri: OptionalText = None


class DataPrerequisite(_Prerequisite):
    """Data; with `plugin` its other keys are that plugin's parameters."""

    type: Literal["data"]
    uri: list[Text] = []


Prerequisite = Annotated[
    DockerImage | FilePrerequisite | DataPrerequisite, Field(discriminator="type")
]


class Completion(_Model):
    """When the job ends. 0 and null mean the default, -1 means never."""

    min_failed_instances: Integer | None = None
    min_succeeded_instances: Integer | None = None


class ExtraContainerOptions(_OpenModel):
    """`shm_mb`: size of /dev/shm in MB. `infiniband`: ask for the node's InfiniBand device."""

    shm_mb: Annotated[Integer | None, _NotNull] = Field(default=None, alias="shmMB")
    infiniband: object = None


class ResourcePerInstance(_Model):
    """What one task gets: CPU cores, memory in MB, GPUs, and ports by label (how many of each)."""

    cpu: Integer
    memory_mb: Integer = Field(alias="memoryMB")
    gpu: Integer
    ports: Annotated[dict[Label, Integer] | None, _NotNull, _NotEmpty] = None


class TaskRole(_Model):
    """One kind of task: `instances` containers of one image that run the same commands."""

    protocol_version: ProtocolVersion = 2
    instances: Annotated[Integer, Field(ge=1)] = 1
    completion: Completion = Completion()
    task_retry_count: Integer = 0
    prerequisites: list[Text] = []
    docker_image: Text
    data: OptionalText = None
    output: OptionalText = None
    script: OptionalText = None
    extra_container_options: ExtraContainerOptions = ExtraContainerOptions()
    resource: ResourcePerInstance = Field(alias="resourcePerInstance")
    commands: Annotated[list[Text], Field(min_length=1)]

    @property
    def min_failed(self) -> int:
        """Failed tasks that end the attempt as failed; -1: no number of them does."""
        return self.completion.min_failed_instances or 1

    @property
    def min_succeeded(self) -> int:
        """Succeeded tasks that end the attempt as succeeded; -1: only all roles' end does."""
        return self.completion.min_succeeded_instances or self.instances


class RoleCommands(_Model):
    """Commands that a deployment puts before and after a role's own."""

    pre_commands: Annotated[list[Text], Field(min_length=1)] = []
    post_commands: Annotated[list[Text], Field(min_length=1)] = []


class Deployment(_OpenModel):
    """A named set of commands around the roles' own; `defaults.deployment` chooses one."""

    name: Name
    protocol_version: ProtocolVersion = 2
    task_roles: Annotated[dict[Label, RoleCommands], _NotEmpty]


class Defaults(_OpenModel):
    """The virtual cluster that runs the job, and the deployment in use."""

    virtual_cluster: object = None
    deployment: OptionalText = None


class Storage(_OpenModel):
    """A storage of the cluster, mounted at `mount_path`, or at /mnt/<name>."""

    name: Text = ""
    mount_path: OptionalText = None

    @property
    def target(self) -> str:
        """The folder inside the container."""
        return self.mount_path or f"/mnt/{self.name}"


class Plugin(_OpenModel):
    """A runtime plugin: ssh, tensorboard, cmd, git. `taskroles`: only those roles run it."""

    plugin: Text
    parameters: dict[str, Any] = {}
    failure_policy: Text = "fail"
    taskroles: list[Text] | None = None


class HivedRole(_OpenModel):
    """What HiveD gives a role: cells of a kind, or pinned ones."""

    sku_type: Text | None = None
    pinned_cell_id: Text | None = None
    affinity_group_name: Text | None = None


class HivedScheduler(_OpenModel):
    """Settings that only a cluster with the HiveD scheduler reads."""

    job_priority_class: Literal["prod", "test", "oppo"] = "test"
    task_roles: Annotated[dict[str, HivedRole], _NotEmpty] | None = None


class Extras(_OpenModel):
    """What OpenPAI's schema leaves open, as far as its server and runtime read it."""

    gang_allocation: object = True
    storages: list[Storage] | None = None
    plugins: list[Plugin] = Field(default=[], alias="com.microsoft.pai.runtimeplugin")
    hived_scheduler: HivedScheduler | None = None


class Job(_Model):
    """A whole job file."""

    protocol_version: ProtocolVersion
    name: Name
    type: Literal["job"]
    version: Version = None
    contributor: OptionalText = None
    description: OptionalText = None
    job_retry_count: Annotated[Integer, Field(ge=0)] = 0
    prerequisites: Annotated[list[Prerequisite], Field(min_length=1)] = []
    parameters: dict[str, Any] = {}
    secrets: dict[str, Any] = {}
    task_roles: Annotated[dict[Label, TaskRole], _NotEmpty]
    deployments: Annotated[list[Deployment], Field(min_length=1)] = []
    defaults: Defaults = Defaults()
    extras: Extras = Extras()

    @classmethod
    def load(cls, source: Path | str, overrides: Mapping[str, str] | None = None) -> Job:
        """The job in a file (a Path) or in a text (a str), its parameters overridden by name.

        ConfigurationError names the first thing that the server would refuse, and its line;
        `ggs.pai.validate` reports everything.
        """
        where = str(source) if isinstance(source, Path) else "job file"
        text = document.read_text(source) if isinstance(source, Path) else source
        parsed = document.parse(set_parameters(text, overrides) if overrides else text)
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
        own = self.task_roles[role].commands
        for deployment in self.deployments:
            if deployment.name == self.defaults.deployment and role in deployment.task_roles:
                around = deployment.task_roles[role]
                return [*around.pre_commands, *own, *around.post_commands]
        return own

    def render_commands(self, role: str) -> str:
        """What a task of `role` runs: trimmed, one command a line, references replaced.

        The server replaces parameters, the init container secrets, each with its own flaws
        (see `ggs.pai.template`).
        """
        text = "\n".join(command.strip() for command in self.commands(role))
        text = template.render(text, self.template_context(role))
        return template.render_secrets(text, self.secrets) if self.secrets else text

    def plugins(self, role: str) -> list[Plugin]:
        """The runtime plugins of a role, in the order they run, references replaced.

        Those of prerequisites come first: their own keys are the parameters. ConfigurationError
        where OpenPAI's init container would fail over a reference.
        """
        found = []
        by_name = {item.name: item for item in self.prerequisites}
        for name in self.task_roles[role].prerequisites:
            item = by_name.get(name)
            plugin = getattr(item, "plugin", None)
            if item is not None and plugin and plugin.startswith(PLUGIN_PREFIX):
                keys = item.model_dump(by_alias=True, exclude_unset=True, exclude={"type"})
                del keys["plugin"]
                policy = keys.pop("failurePolicy", "fail")
                found.append(
                    Plugin(
                        plugin=plugin[len(PLUGIN_PREFIX) + 1 :],
                        parameters=keys,
                        failure_policy=str(policy),
                    )
                )
        found += [
            plugin
            for plugin in self.extras.plugins
            if plugin.taskroles is None or role in plugin.taskroles
        ]
        context = {**self.template_context(role), "$secrets": self.secrets}
        return [
            plugin.model_copy(update={"parameters": _render_all(plugin.parameters, context)})
            for plugin in found
        ]


def _render_all(value: Any, context: Mapping[str, object]) -> Any:
    """`value` with the references in every text below it replaced."""
    if isinstance(value, dict):
        return {key: _render_all(item, context) for key, item in value.items()}
    if isinstance(value, list):
        return [_render_all(item, context) for item in value]
    return template.render_plugin_text(value, context) if isinstance(value, str) else value


def locate(error: ErrorDetails, parsed: document.Document) -> tuple[document.Path, str]:
    """Where in the file a complaint of the model belongs, and its text.

    The model's own location also names the branch of a union and `[key]`; only what the file
    contains is kept, and the name of a key that is missing.
    """
    path: document.Path = ()
    value = parsed.value
    for step in error["loc"]:
        if document.contains(value, step):
            value = value[step]  # type: ignore[index]
        elif error["type"] != "missing" or step != error["loc"][-1]:
            continue
        path = (*path, step)
    if error["type"] in ("union_tag_not_found", "union_tag_invalid"):
        path = (*path, "type")
    return path, error["msg"]

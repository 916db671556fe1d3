"""The parts of a job file: OpenPAI's job protocol, version 2, as typed models.

The fields and types are those of the server's own schema (rest-server, config/v2/protocol.js):
what it answers 400 to, the models refuse, and nothing else. Only `Extras` says more than the
schema, which leaves that part open: it has the types that OpenPAI's code reads there.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

PLUGIN_PREFIX: Final = "com.microsoft.pai.runtimeplugin"


def _refuse_null(value: object) -> object:
    if value is None:
        raise PydanticCustomError("null", "a value is missing after the colon")
    return value


def _refuse_empty(value: dict[str, Any]) -> dict[str, Any]:
    if not value:
        raise PydanticCustomError("too_short", "at least one entry is needed")
    return value


def _no_ports(value: object) -> object:
    """The schema forgets the type, and the server's code takes what JavaScript calls false as no ports."""
    empty = value in ([], False, 0, "") and value is not None
    return None if empty else value


NotNull = BeforeValidator(_refuse_null)
NotEmpty = AfterValidator(_refuse_empty)
Text = Annotated[str, Strict()]
Integer = Annotated[int, Strict()]
# May be left out, but not be written as null.
OptionalText = Annotated[Text | None, NotNull]
Version = Annotated[Text | Integer | Annotated[float, Strict()] | None, NotNull]
Name = Annotated[Text, StringConstraints(pattern=r"^[a-zA-Z0-9_-]+$", max_length=255)]
Label = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
ProtocolVersion = Literal[2, "2"]


class Model(BaseModel):
    """Camel case in the file, snake case in Python; unknown keys are refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class OpenModel(Model):
    """A part in which OpenPAI allows keys that it does not know."""

    model_config = ConfigDict(extra="allow")


class Auth(OpenModel):
    """Login of a private registry; the values may use `<% $secrets.x %>`."""

    username: OptionalText = None
    password: OptionalText = None
    registryuri: OptionalText = None


class DockerImage(Model):
    """A container image that task roles name in `dockerImage`."""

    type: Literal["dockerimage"]
    name: Name
    uri: Text
    protocol_version: ProtocolVersion = 2
    version: Version = None
    contributor: OptionalText = None
    description: OptionalText = None
    auth: Annotated[Auth | None, NotNull] = None


class _Prerequisite(OpenModel):
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


class Completion(Model):
    """When the job ends. 0 and null mean the default, -1 means never."""

    min_failed_instances: Integer | None = None
    min_succeeded_instances: Integer | None = None


class ExtraContainerOptions(OpenModel):
    """`shm_mb`: size of /dev/shm in MB. `infiniband`: ask for the node's InfiniBand device."""

    shm_mb: Annotated[Integer | None, NotNull] = Field(default=None, alias="shmMB")
    infiniband: object = None


class ResourcePerInstance(Model):
    """What one task gets: CPU cores, memory in MB, GPUs, and ports by label (how many of each)."""

    cpu: Integer
    memory_mb: Integer = Field(alias="memoryMB")
    gpu: Integer
    ports: Annotated[
        Annotated[dict[Label, Integer], NotEmpty] | None, BeforeValidator(_no_ports)
    ] = None


class RoleSpec(Model):
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


class RoleCommands(Model):
    """Commands that a deployment puts before and after a role's own."""

    pre_commands: Annotated[list[Text], Field(min_length=1)] = []
    post_commands: Annotated[list[Text], Field(min_length=1)] = []


class Deployment(OpenModel):
    """A named set of commands around the roles' own; `defaults.deployment` chooses one."""

    name: Name
    protocol_version: ProtocolVersion = 2
    task_roles: Annotated[dict[Label, RoleCommands], NotEmpty]


class Defaults(OpenModel):
    """The virtual cluster that runs the job, and the deployment in use."""

    virtual_cluster: object = None
    deployment: OptionalText = None


class Storage(OpenModel):
    """A storage of the cluster, mounted at `mount_path`, or at /mnt/<name>."""

    name: Text = ""
    mount_path: OptionalText = None

    @property
    def target(self) -> str:
        """The folder inside the container."""
        return self.mount_path or f"/mnt/{self.name}"


class Plugin(OpenModel):
    """A runtime plugin: ssh, tensorboard, cmd, git. What else it has is for `ggs.pai.job.plugins`."""

    plugin: Text


class HivedRole(OpenModel):
    """What HiveD gives a role: cells of a kind, or pinned ones."""

    sku_type: Text | None = None
    pinned_cell_id: Text | None = None
    affinity_group_name: Text | None = None


class HivedScheduler(OpenModel):
    """Settings that only a cluster with the HiveD scheduler reads."""

    job_priority_class: Literal["prod", "test", "oppo"] = "test"
    task_roles: Annotated[dict[str, HivedRole], NotEmpty] | None = None


class Extras(OpenModel):
    """What OpenPAI's schema leaves open, as far as its server and runtime read it."""

    gang_allocation: object = True
    storages: list[Storage] | None = None
    plugins: list[Plugin] = Field(default=[], alias="com.microsoft.pai.runtimeplugin")
    hived_scheduler: HivedScheduler | None = None

"""Names that one part of a job file uses for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ggs.pai.job.document import Path
from ggs.pai.job.protocol import PLUGIN_PREFIX
from ggs.pai.validate.finding import JobView, Violation, rule

_FIELDS = {"dockerImage": "dockerimage", "data": "data", "output": "output", "script": "script"}


def _named(view: JobView) -> list[tuple[Path, str, str]]:
    """Path, type and name of each prerequisite that has both."""
    return [
        (path, str(item["type"]), str(item["name"]))
        for path, item in view.prerequisites
        if isinstance(item.get("type"), str) and isinstance(item.get("name"), str)
    ]


@rule(
    "prerequisite-unknown",
    "error",
    consequence="the server answers 400: Prerequisite … does not exist",
    fix="add the prerequisite, or use the name of one that exists",
)
def unknown_prerequisite(view: JobView) -> Iterator[Violation]:
    """A role's dockerImage, data, output and script name a prerequisite of that type; its
    prerequisites name ones of any type."""
    named = _named(view)
    for role in view.roles:
        for key, kind in _FIELDS.items():
            name = view.text("taskRoles", role, key)
            if name is not None and not any(name == n and kind == k for _, k, n in named):
                message = f"no prerequisite of type {kind} is named {name!r}"
                yield Violation(("taskRoles", role, key), message)
        for index, item in enumerate(view.sequence("taskRoles", role, "prerequisites")):
            if isinstance(item, str) and not any(item == n for _, _, n in named):
                path = ("taskRoles", role, "prerequisites", index)
                yield Violation(path, f"no prerequisite is named {item!r}")


@rule(
    "prerequisite-duplicate",
    "error",
    consequence="the server answers 400: Duplicate … prerequisites",
    fix="give each prerequisite a name of its own",
)
def duplicate_prerequisite(view: JobView) -> Iterator[Violation]:
    """Two prerequisites of one type may not share a name."""
    seen: set[tuple[str, str]] = set()
    for path, kind, name in _named(view):
        if (kind, name) in seen:
            yield Violation((*path, "name"), f"a second {kind} prerequisite is named {name!r}")
        seen.add((kind, name))


@rule(
    "prerequisite-name-shared",
    "error",
    consequence="the init container's image check ends with 254, which is never retried, and plugins may "
    "get the wrong prerequisite",
    fix="give each prerequisite a name of its own, whatever its type",
)
def shared_name(view: JobView) -> Iterator[Violation]:
    """The runtime looks prerequisites up by name alone: its image check insists on exactly one
    of the image's name, over all types."""
    first: dict[str, str] = {}
    for path, kind, name in _named(view):
        if first.setdefault(name, kind) != kind:
            yield Violation((*path, "name"), f"{name!r} also names a {first[name]} prerequisite")


@rule(
    "prerequisite-inactive",
    "warning",
    consequence="the plugin silently never runs",
    fix="list its name under taskRoles.<role>.prerequisites",
)
def inactive(view: JobView) -> Iterator[Violation]:
    """A prerequisite's plugin runs only in the roles that list the prerequisite."""
    listed = [
        name for role in view.roles for name in view.sequence("taskRoles", role, "prerequisites")
    ]
    for path, item in view.prerequisites:
        if item.get("plugin") is not None and item.get("name") not in listed:
            yield Violation((*path, "plugin"), f"no role lists {item.get('name')!r}")


@rule(
    "prerequisite-plugin-name",
    "warning",
    consequence="the runtime silently ignores it",
    fix=f"write {PLUGIN_PREFIX}.<name>",
)
def plugin_prefix(view: JobView) -> Iterator[Violation]:
    """A prerequisite's plugin is named com.microsoft.pai.runtimeplugin.<name> in full."""
    for path, item in view.prerequisites:
        plugin = item.get("plugin")
        if isinstance(plugin, str) and not plugin.startswith(f"{PLUGIN_PREFIX}."):
            yield Violation((*path, "plugin"), f"{plugin!r} is not a runtime plugin's full name")


@rule(
    "image-unused",
    "warning",
    consequence="nothing happens to it: perhaps a role runs another image than meant",
    fix="name it in a role's dockerImage, or remove it",
)
def unused_image(view: JobView) -> Iterator[Violation]:
    """An image that no role names is never pulled."""
    used = Counter(view.text("taskRoles", role, "dockerImage") for role in view.roles)
    for path, kind, name in _named(view):
        if view.roles and kind == "dockerimage" and not used[name]:
            yield Violation(path, f"no role uses the image {name!r}")


@rule(
    "deployment-unknown",
    "error",
    consequence="the server answers 400: Default deployment … does not exist",
    fix="add the deployment, or use the name of one that exists",
)
def unknown_deployment(view: JobView) -> Iterator[Violation]:
    """defaults.deployment names one of deployments."""
    name = view.text("defaults", "deployment")
    if name is not None and not any(item.get("name") == name for _, item in view.deployments):
        yield Violation(("defaults", "deployment"), f"no deployment is named {name!r}")


@rule(
    "deployment-duplicate",
    "error",
    consequence="the server answers 400: Duplicate deployments",
    fix="give each deployment a name of its own",
)
def duplicate_deployment(view: JobView) -> Iterator[Violation]:
    """Two deployments may not share a name."""
    seen: set[object] = set()
    for path, item in view.deployments:
        name = item.get("name")
        if isinstance(name, str) and name in seen:
            yield Violation((*path, "name"), f"a second deployment is named {name!r}")
        seen.add(name if isinstance(name, str) else None)


@rule(
    "deployment-unused",
    "warning",
    consequence="its commands silently never run",
    fix="name it in defaults.deployment, or remove it",
)
def unused_deployment(view: JobView) -> Iterator[Violation]:
    """Only the deployment that defaults.deployment names is used."""
    used = view.text("defaults", "deployment")
    for path, item in view.deployments:
        if isinstance(item.get("name"), str) and item["name"] != used:
            yield Violation(path, f"the deployment {item['name']!r} is not in use")


@rule(
    "deployment-role-unknown",
    "warning",
    consequence="its commands silently never run",
    fix="use the name of a role",
)
def deployment_role(view: JobView) -> Iterator[Violation]:
    """A deployment's commands belong to a role of the same name."""
    for path, _ in view.deployments:
        for role in view.mapping(*path, "taskRoles"):
            if role not in view.roles:
                yield Violation((*path, "taskRoles", role), f"there is no role {role!r}")

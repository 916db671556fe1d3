"""References `<% $… %>`."""

from __future__ import annotations

from collections.abc import Iterator

from ggs.pai.job.document import Path, walk
from ggs.pai.job.scalars import to_text
from ggs.pai.job.stored import in_container
from ggs.pai.job.template import MISSING, Reference, lookup, references, steps, unclosed
from ggs.pai.validate.finding import JobView, Violation, rule

_ROOTS = ("$parameters", "$secrets", "$script", "$output", "$data")


def _rendered(view: JobView) -> Iterator[tuple[Path, str, str | None, bool]]:
    """Path, text, role and whether a plugin reads it, of every text that OpenPAI renders."""
    for role in view.roles:
        for path, text in view.commands(role):
            yield path, text, role, False
    for path, _ in view.plugins():
        for below, value in walk(view.document.get(*path, "parameters"), (*path, "parameters")):
            if isinstance(value, str):
                yield below, value, None, True
    for path, item in view.prerequisites:
        if item.get("plugin") is not None:
            for below, value in walk(item, path):
                if isinstance(value, str) and below[-1] != "plugin":
                    yield below, value, None, True


def _context(view: JobView, role: str | None) -> dict[str, object]:
    """What references may name; without a role any role's script, output and data count."""
    context: dict[str, object] = {"$parameters": view.parameters, "$secrets": view.secrets}
    for name in (role,) if role is not None else view.roles:
        for kind in ("script", "output", "data"):
            wanted = view.text("taskRoles", name, kind)
            for _, item in view.prerequisites:
                if wanted is not None and item.get("type") == kind and item.get("name") == wanted:
                    context[f"${kind}"] = item
    return context


def resolved(view: JobView) -> Iterator[tuple[Path, Reference, object, bool]]:
    """Path, reference, value and whether a plugin reads it, of every plain reference."""
    contexts: dict[str | None, dict[str, object]] = {}
    for path, text, role, plugin in _rendered(view):
        context = contexts.get(role) or contexts.setdefault(role, _context(view, role))
        for reference in references(text):
            if not reference.kind:
                yield path, reference, lookup(reference.name, context), plugin


@rule(
    "template-unclosed",
    "error",
    consequence="the server answers 500: Unclosed tag",
    fix="end the reference with %>",
)
def template_unclosed(view: JobView) -> Iterator[Violation]:
    """A command with <% and no %> is a syntax error for the server's template engine."""
    for path, text, _, plugin in _rendered(view):
        if not plugin and unclosed(text):
            yield Violation(path, "a <% has no %>")


@rule(
    "template-kind",
    "error",
    consequence="the reference vanishes from the command, or the server answers 500",
    fix="write <% $parameters.name %>",
)
def template_kind(view: JobView) -> Iterator[Violation]:
    """Of mustache's language the server keeps text and plain names: sections, partials, comments
    and unescaped names are dropped."""
    for path, text, _, plugin in _rendered(view):
        for reference in references(text):
            if reference.kind and not plugin:
                yield Violation(path, f"<%{reference.kind} {reference.name} %> is not supported")


@rule(
    "template-unknown",
    "error",
    consequence="the text <% … %> stays in the command, where bash reads it as a redirection: the "
    "task fails and is retried until jobRetryCount is used up",
    fix="write a name that exists under parameters or secrets",
)
def template_unknown(view: JobView) -> Iterator[Violation]:
    """An unknown or null reference is left as it stands; in a job with secrets it becomes empty;
    in a plugin's parameters the init container dies of it."""
    for path, reference, value, plugin in resolved(view):
        root = reference.name.partition(".")[0].partition("[")[0]
        if value is not MISSING or (plugin and not reference.name.startswith("$")):
            continue
        consequence = ""
        if plugin:
            consequence = (
                "the init container fails on every attempt, until jobRetryCount is used up"
            )
        elif view.secrets:
            consequence = "the reference silently becomes empty, because the job has secrets"
        fix = "" if root in _ROOTS else f"references start with {', '.join(_ROOTS)}"
        yield Violation(path, f"<% {reference.name} %> refers to nothing", fix, consequence)


@rule(
    "template-not-text",
    "error",
    consequence="the init container fails on every attempt, until jobRetryCount is used up",
    fix="put the parameter's value between quotes, or write it out here",
)
def template_not_text(view: JobView) -> Iterator[Violation]:
    """In a plugin's parameters only text can be inserted: a number kills the init container."""
    for path, reference, value, plugin in resolved(view):
        if plugin and value is not MISSING and not isinstance(value, str):
            yield Violation(path, f"<% {reference.name} %> is not text")


@rule(
    "template-structure",
    "error",
    consequence="the command gets [object Object], or a list's values with commas between them",
    fix="name one value: <% $parameters.name.key %>, <% $parameters.name[0] %>",
)
def template_structure(view: JobView) -> Iterator[Violation]:
    """A reference to a mapping or a list is inserted as JavaScript writes it."""
    for path, reference, value, plugin in resolved(view):
        if not plugin and isinstance(value, (dict, list)):
            kind = "mapping" if isinstance(value, dict) else "list"
            yield Violation(path, f"<% {reference.name} %> names a {kind}")


@rule(
    "template-elsewhere",
    "error",
    consequence="the text stays as it is: an image or a storage of that name does not exist",
    fix="write the value, or use a YAML anchor: `image: &image …` under parameters and "
    "`uri: *image` here",
)
def template_elsewhere(view: JobView) -> Iterator[Violation]:
    """References are replaced in commands, plugin parameters and an image's auth, nowhere
    else."""
    rendered = {path for path, *_ in _rendered(view)}
    for path, value in walk(view.document.value):
        if not isinstance(value, str) or not references(value) or path in rendered:
            continue
        inside = path and path[0] in ("name", "prerequisites", "taskRoles", "defaults", "extras")
        if inside and path[2:3] != ("auth",):
            yield Violation(path, f"{references(value)[0].name} is not replaced here")


@rule(
    "template-nested",
    "warning",
    consequence="the inner reference stays as it is",
    fix="write the value out",
)
def template_nested(view: JobView) -> Iterator[Violation]:
    """Values are inserted once: a reference inside a parameter is not replaced in turn."""
    for path, value in walk(view.parameters, ("parameters",)):
        if isinstance(value, str) and references(value):
            yield Violation(path, f"{references(value)[0].name} inside a parameter")


@rule(
    "value-changed",
    "warning",
    consequence="the command gets another text than the file has",
    fix="put the value between quotes",
)
def value_changed(view: JobView) -> Iterator[Violation]:
    """The server reads a value first and inserts what JavaScript writes for it: 3.10 becomes 3.1, 1e-4
    0.0001, 2021-05-03 a date in words. A secret is written by Python: true becomes True."""
    for path, reference, value, plugin in resolved(view):
        root, _, rest = reference.name.partition(".")
        if plugin or value is MISSING or root not in ("$parameters", "$secrets"):
            continue
        written = view.document.written.get((root[1:], *steps(rest)))
        text = to_text(value) if root == "$parameters" else str(in_container(value))
        if written is not None and written != text:
            message = f"<% {reference.name} %> is {written} in the file and {text} in the command"
            yield Violation(path, message)

"""References `<% $… %>` and secrets."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from ggs.pai.job.document import Path, format_path, walk
from ggs.pai.job.template import MISSING, Reference, lookup, references, unclosed
from ggs.pai.validate.finding import JobView, Violation, rule

_ROOTS = ("$parameters", "$secrets", "$script", "$output", "$data")
_CONFIDENTIAL = re.compile(r"passw(or)?d|secret|token|api_?key|credential", re.IGNORECASE)


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


def _resolved(view: JobView) -> Iterator[tuple[Path, Reference, object, bool]]:
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
    for path, reference, value, plugin in _resolved(view):
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
    for path, reference, value, plugin in _resolved(view):
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
    for path, reference, value, plugin in _resolved(view):
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
    "secret-escaped",
    "warning",
    consequence="the command gets the secret with HTML escapes: & becomes &amp;, a quote &quot;",
    fix="read it from /usr/local/pai/secrets/secrets.yaml in the container, or choose one "
    "without & < > \" and '",
)
def secret_escaped(view: JobView) -> Iterator[Violation]:
    """The init container inserts secrets with an HTML template engine."""
    for path, reference, value, plugin in _resolved(view):
        secret = reference.name.startswith("$secrets") and not plugin
        if secret and isinstance(value, str) and html.escape(value) != value:
            yield Violation(path, f"<% {reference.name} %> has characters that are escaped")


@rule(
    "secret-not-masked",
    "error",
    consequence="everybody who may see the job's configuration can read the secrets",
    fix="write `secrets:` at the start of a line, in block style",
)
def secret_not_masked(view: JobView) -> Iterator[Violation]:
    """The server masks what stands between a line that begins with secrets: and the next line
    that begins with a letter, digit or _; a key that is quoted, spaced or indented stays
    readable."""
    if view.secrets and not re.search(r"^secrets:", view.document.text, re.M):
        yield Violation(("secrets",), "the secrets are not masked in the stored configuration")


@rule(
    "secret-in-parameters",
    "warning",
    consequence="everybody who may see the job's configuration can read it",
    fix="move it under secrets and write <% $secrets.name %>",
)
def secret_in_parameters(view: JobView) -> Iterator[Violation]:
    """Parameters are stored as they stand; only secrets are masked."""
    for path, value in walk(view.parameters, ("parameters",)):
        if isinstance(value, str) and value and _CONFIDENTIAL.search(str(path[-1])):
            yield Violation(path, f"{format_path(path)} looks like a secret")

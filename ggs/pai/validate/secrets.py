"""Secrets: what the stored file shows of them, and what masking them does to it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from ggs.pai.job.document import format_path, walk
from ggs.pai.job.stored import Damage
from ggs.pai.validate.finding import JobView, Violation, rule
from ggs.pai.validate.templates import resolved

_CONFIDENTIAL = re.compile(r"passw(or)?d|secret|token|api_?key|credential", re.IGNORECASE)


def _damage(view: JobView, kind: str) -> Damage | None:
    damage = view.masking_damage
    return damage if damage is not None and damage.kind == kind else None


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
    if damage := _damage(view, "readable"):
        yield Violation(("secrets",), damage.message)


@rule(
    "secret-mask-syntax",
    "error",
    consequence="the server answers 500: its database service cannot read the file that it is to keep",
    fix="write `secrets:` in block style, indent all below it, and name no anchor of it elsewhere",
)
def secret_mask_syntax(view: JobView) -> Iterator[Violation]:
    """The file is parsed again after its secrets are masked: an anchor that stood there is gone, and a
    list or text that went on at the start of a line is cut in two."""
    if damage := _damage(view, "syntax"):
        yield Violation(("secrets",), damage.message)


@rule(
    "secret-mask-loses",
    "error",
    consequence="the server answers 202; the init containers do not find what is gone: without taskRoles or "
    "prerequisites no task starts, without extras no plugin runs",
    fix="write the key after the secrets without quotes, at the start of its line",
)
def secret_mask_loses(view: JobView) -> Iterator[Violation]:
    """The mask ends at the next line that begins with a letter, digit or _; a quoted key does not, and
    is masked with all below it."""
    damage = _damage(view, "lost")
    if damage and _is_needed(view, damage.keys):
        yield Violation(("secrets",), damage.message)


@rule(
    "secret-mask-hides",
    "warning",
    consequence="the job runs; its page and a copy of the job lack what is gone",
    fix="write the key after the secrets without quotes, at the start of its line",
)
def secret_mask_hides(view: JobView) -> Iterator[Violation]:
    """As secret-mask-loses, for keys that only the server needs."""
    damage = _damage(view, "lost")
    if damage and not _is_needed(view, damage.keys):
        yield Violation(("secrets",), damage.message)


def _is_needed(view: JobView, keys: tuple[str, ...]) -> bool:
    """Whether the init containers read one of the keys."""
    plugins = bool(view.plugins()) or any("plugin" in item for _, item in view.prerequisites)
    needed = {"taskRoles", "prerequisites", *(("extras", "parameters") if plugins else ())}
    return not needed.isdisjoint(keys)


@rule(
    "secret-escaped",
    "warning",
    consequence="the command gets the secret with HTML escapes: & becomes &amp;, a quote &quot;",
    fix="read it from /usr/local/pai/secrets/secrets.yaml in the container, or choose one "
    "without & < > \" and '",
)
def secret_escaped(view: JobView) -> Iterator[Violation]:
    """The init container inserts secrets with an HTML template engine."""
    for path, reference, value, plugin in resolved(view):
        secret = reference.name.startswith("$secrets") and not plugin
        if secret and isinstance(value, str) and html.escape(value) != value:
            yield Violation(path, f"<% {reference.name} %> has characters that are escaped")


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

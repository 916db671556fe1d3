"""A job file made ready to send: safe to store on OpenPAI and to show.

OpenPAI stores the text and masks it when it shows it, with a regular expression that needs
``secrets:`` at the start of a line and everything below it indented. A file written otherwise
would show its secrets to everyone who opens the job's page, so it is not sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ggs.errors import ConfigurationError
from ggs.pai.client.responses import redact
from ggs.pai.job.document import Document, walk
from ggs.pai.job.stored import mask, masking_damage


@dataclass(frozen=True)
class Submission:
    """The document to send. ``secrets`` must not be shown; ``shown`` is its text without them."""

    name: str
    document: Document = field(repr=False)
    shown: str
    secrets: frozenset[str] = field(repr=False)


def prepare(document: Document) -> Submission:
    """See to a job file's name and secrets; ConfigurationError if it is no job.

    Only a file that has secrets is parsed once more, as OpenPAI would show it.
    """
    value = document.value
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ConfigurationError("the job file has no name: add `name: …` at its top")
    damage = masking_damage(document)
    if damage is not None and damage.kind != "lost":
        raise ConfigurationError(
            f"OpenPAI cannot mask this file's secrets, {damage.message}: write `secrets:` at the start of "
            "a line and indent what belongs to it"
        )
    logins = _logins(value)
    return Submission(
        name=value["name"],
        document=document,
        shown=redact(mask(document.text), logins),
        secrets=logins | _texts(value.get("secrets")),
    )


def _texts(value: object) -> frozenset[str]:
    """Every text below ``value`` that is long enough to be hidden without harm."""
    return frozenset(item for _, item in walk(value) if isinstance(item, str) and len(item) > 3)


def _logins(value: Mapping[str, object]) -> frozenset[str]:
    """Passwords of private registries that stand in the file itself."""
    prerequisites = value.get("prerequisites")
    passwords: frozenset[str] = frozenset()
    for item in prerequisites if isinstance(prerequisites, list) else []:
        auth = item.get("auth") if isinstance(item, dict) else None
        password = auth.get("password") if isinstance(auth, dict) else None
        if isinstance(password, str) and "<%" not in password:
            passwords |= _texts(password)
    return passwords

"""A job's stored file as text again: what ``pai job config`` prints and ``pai job clone`` submits.

OpenPAI sends the stored file as JSON, with the value of ``secrets`` masked. Every YAML reader, 1.1
(PyYAML), js-yaml 3 and 4, has to read the text back as the same values: texts that one of them takes
for a number, a truth value or a date are quoted.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from ggs.errors import ConfigurationError
from ggs.pai.job.document import Document, parse
from ggs.pai.job.stored import MASK

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@+=-]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    style = None if plain else "|" if "\n" in text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _write_text)


def to_text(stored: Mapping[str, Any]) -> str:
    """The stored file as YAML."""
    return yaml.dump(dict(stored), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def to_document(
    stored: Mapping[str, Any], secrets: Mapping[str, Any] | None, source: str
) -> Document:
    """The stored file of ``source``, ready to be edited and submitted.

    Raises ConfigurationError where its secrets are masked and none are given, or where it would not
    come out as it went in.
    """
    value = dict(stored)
    if secrets is not None:
        value["secrets"] = dict(secrets)
    elif value.get("secrets") == MASK:
        raise ConfigurationError(
            f"OpenPAI masks the secrets of {source}: give them with --secrets FILE, a YAML file of "
            "what stood below 'secrets:'"
        )
    document = parse(to_text(value), source)
    if document.value != value:
        raise ConfigurationError(
            f"{source} holds values that cannot be written again exactly: save it with 'pai job config', "
            "and change and submit that file"
        )
    return document

"""YAML of unknown origin as plain data: bounded memory and time, and one kind of error.

PyYAML's safe loader runs no code, but merge keys let a small file grow beyond all memory, the numbers
of YAML 1.1 take quadratic time (``1:1:1:…``) or cannot be shown (``0xfff…``), and some tags fail in ways
of their own. Callers limit the length of what they read.
"""

import re
from typing import Any

import yaml

MAX_NUMBER = 400
"""Characters. Longer ones are beyond every number that means something here."""
_INT, _FLOAT, _DATE = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp"))
_WHOLE = re.compile(r"[-+]?(?:0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)$")
_FRACTION = re.compile(
    r"""[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?$
    |[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$""",
    re.VERBOSE,
)
_FIRST = list("-+.0123456789")
_BASES = {"0b": 2, "0o": 8, "0x": 16}


class PlainLoader(yaml.SafeLoader):
    """SafeLoader without merge keys and long numbers. Aliases stand for one object, not for copies."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, "merge keys are not allowed here", key.start_mark
                )

    def construct_scalar(self, node: Any) -> Any:
        if node.tag in (_INT, _FLOAT) and len(node.value) > MAX_NUMBER:
            problem = f"a number of {len(node.value)} characters"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_scalar(node)


class SettingsLoader(PlainLoader):
    """Numbers as YAML 1.2 and people read them: 1e-8 is a number and 016 is 16, in YAML 1.1 a text and 14;
    1:30 and 2024-01-01 are texts, there 90 and a date. Refuses aliases, of which a few lines can stand for
    gigabytes, and duplicate keys."""

    yaml_implicit_resolvers = {  # noqa: RUF012 as PyYAML declares it
        first: [(tag, text) for tag, text in known if tag not in (_INT, _FLOAT, _DATE)]
        for first, known in PlainLoader.yaml_implicit_resolvers.items()
    }

    def construct_whole(self, node: Any) -> int:
        """The int of a scalar, whose 0b, 0o or 0x tells its base."""
        text = str(self.construct_scalar(node)).replace("_", "")
        return int(text, _BASES.get(text.lstrip("-+")[:2], 10))

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(f"line {self.line + 1}: aliases are not allowed here")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        mapping = super().construct_mapping(node, deep=deep)
        if len(mapping) != len(node.value):
            lines: dict[Any, int] = {}
            for key, _ in node.value:
                name, mark = self.construct_object(key, deep=deep), key.start_mark
                if name in lines:
                    problem = f"{name} is given twice, first on line {lines[name]}"
                    raise yaml.constructor.ConstructorError(None, None, problem, mark)
                lines[name] = mark.line + 1
        return mapping


class _SettingsDumper(yaml.SafeDumper):
    """Quotes the texts that either version of YAML would read as something else."""


for _class in (SettingsLoader, _SettingsDumper):
    _class.add_implicit_resolver(_INT, _WHOLE, _FIRST)
    _class.add_implicit_resolver(_FLOAT, _FRACTION, _FIRST)
SettingsLoader.add_constructor(_INT, SettingsLoader.construct_whole)


def load(text: str | bytes, loader: type[PlainLoader] = PlainLoader) -> Any:
    """The value of one YAML document. Raises yaml.YAMLError, and nothing else."""
    try:
        return yaml.load(text, loader)
    except yaml.YAMLError:
        raise
    except Exception as error:  # of tags: IndexError for !!int "", KeyError for !!bool x, ...
        raise yaml.YAMLError(str(error) or type(error).__name__) from None


def dump_settings(values: dict[str, Any]) -> str:
    """YAML that a ``SettingsLoader`` reads back as ``values``, and any other reader too."""
    return yaml.dump(values, Dumper=_SettingsDumper, sort_keys=False, allow_unicode=True)


def reason(error: yaml.YAMLError) -> str:
    """What is wrong in a YAML text, on one line, and where."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())

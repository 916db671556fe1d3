"""One pydantic model, three ways to read it: a YAML file, command-line flags, a help page.

The model is the only place where a setting's name, type, default, unit and limits are written. Flags
are the field names with dashes; the help page has a heading at each field marked as a ``Group``; every
wrong name or value becomes a one-line :class:`ggs.errors.ConfigurationError`.
"""

import argparse
import difflib
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ggs import plain_yaml
from ggs.errors import ConfigurationError
from ggs.plain_yaml import SettingsLoader
from ggs.text import shorten

Model = TypeVar("Model", bound=BaseModel)
Mark = TypeVar("Mark")

YAML_LIMIT = 1 << 18
"""Bytes. A configuration has a few dozen lines; what is larger is something else."""


@dataclass(frozen=True)
class Group:
    """Marks the field that begins a group of settings; those after it belong to it too."""

    title: str


@dataclass(frozen=True)
class Metavar:
    """Marks a field whose value the help page calls so."""

    text: str


_HELP = "ggs train --help lists every setting"


def parse(model: type[Model], argv: Sequence[str], prog: str, description: str) -> Model:
    """Read ``--config FILE`` and flags into ``model``; flags win over the file, the file over defaults.

    Prints the help page and raises SystemExit(0) for ``--help``. Raises ConfigurationError for an
    unknown flag or key, a wrong value, or a file that cannot be read.
    """
    parser = _parser(model, prog, description)
    flags, unknown = parser.parse_known_args(list(argv))
    if unknown:
        flag = unknown[0].split("=")[0]
        if not flag.startswith("-"):
            raise ConfigurationError(f"{unknown[0]!r} has no flag before it; {_HELP}")
        known = [option for action in parser._actions for option in action.option_strings]
        raise ConfigurationError(f"{flag} is no setting{suggestion(flag, known)}; {_HELP}")
    given = vars(flags)
    path = given.pop("config", None)
    values = load_yaml(Path(path)) if path is not None else {}
    for name, text in given.items():
        values[name] = (
            _value(model.model_fields[name], name, text) if isinstance(text, str) else text
        )
    return build(model, values)


def build(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Validate ``values``. Raises ConfigurationError that names field, value and what is allowed."""
    for name in values:
        if name not in model.model_fields:
            near = suggestion(str(name), model.model_fields)
            raise ConfigurationError(f"{name!r} is no setting{near}; {_HELP}")
        kind, _ = _plain_type(model.model_fields[name])
        if isinstance(values[name], bool) and kind in (int, float):  # pydantic takes true for 1
            shown = f"{name}: {str(values[name]).lower()}"
            raise ConfigurationError(
                f"{shown} (in YAML also {'yes and on' if values[name] else 'no and off'}) is not allowed; "
                f"give {allowed(model, name)}"
            )
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigurationError("; ".join(_lines(model, error))) from None


def suggestion(word: str, known: Iterable[str]) -> str:
    """``, did you mean X?`` for the known word nearest to ``word``, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f", did you mean {near[0]}?" if near else ""


def load_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfigurationError for whatever else is found there."""
    try:
        with path.expanduser().open("rb") as file:
            text = file.read(YAML_LIMIT + 1)
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name, a home of nobody
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"config: cannot read {str(path)!r}: {reason}") from None
    if len(text) > YAML_LIMIT:
        raise ConfigurationError(f"config: {path} is larger than {YAML_LIMIT:,} bytes")
    try:
        values = plain_yaml.load(text, SettingsLoader)
    except yaml.YAMLError as error:
        raise ConfigurationError(
            f"config: {path} is not readable as YAML: {plain_yaml.reason(error)}"
        ) from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigurationError(
            f"config: {path} holds a {type(values).__name__}, not NAME: VALUE lines"
        )
    return {str(name): value for name, value in values.items()}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message.removeprefix('argument ')}; {_HELP}")


def _parser(model: type[BaseModel], prog: str, description: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        description=description,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=28, width=100),
        usage=f"{prog} [--config FILE] [--SETTING VALUE ...]",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file of NAME: VALUE lines, names as below; flags win"
    )
    group: argparse._ArgumentGroup | _Parser = parser
    for name, field in model.model_fields.items():
        if begun := mark(field, Group):
            group = parser.add_argument_group(begun.title)
        flag = "--" + name.replace("_", "-")
        text = f"{_description(field)} [{_shown(field.default)}]".replace("%", "%%")
        if field.annotation is bool:
            group.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, help=text)
        else:
            group.add_argument(flag, dest=name, metavar=_metavar(field), help=text)
    return parser


def mark(field: FieldInfo, kind: type[Mark]) -> Mark | None:
    """What of this kind the field is marked with, as ``Annotated[int, mark]``."""
    return next((item for item in field.metadata if isinstance(item, kind)), None)


def _description(field: FieldInfo) -> str:
    """On one line, however its docstring is wrapped."""
    return " ".join((field.description or "").split())


def _shown(default: Any) -> str:
    return "unset" if default is None else str(default) if default != {} else "none"


def _plain_type(field: FieldInfo) -> tuple[Any, bool]:
    """The field's type without ``| None``, and whether None is allowed."""
    annotation = field.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [part for part in get_args(annotation) if part is not type(None)]
        kind = get_args(inner[0])[0] if get_origin(inner[0]) is Annotated else inner[0]
        return kind, len(inner) < len(get_args(annotation))
    return annotation, False


def _metavar(field: FieldInfo) -> str:
    kind, _ = _plain_type(field)
    if marked := mark(field, Metavar):
        return marked.text
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if get_origin(kind) is dict:
        return "{NAME: VALUE}"
    names = {int: "N", float: "X", str: "NAME", Path: "PATH"}
    return names.get(kind) or str(kind.__name__).upper()


def _value(field: FieldInfo, name: str, text: str) -> Any:
    """A flag's text as the value that the same setting would have in a YAML file."""
    kind, optional = _plain_type(field)
    if optional and text.lower() in ("none", "null", "unset"):
        return None
    if get_origin(kind) is not dict:
        return text
    try:
        return plain_yaml.load(text, SettingsLoader)
    except yaml.YAMLError as error:
        raise ConfigurationError(
            f"{name}: {text!r} is not readable; give names and values such as '{{nesterov: true}}' "
            f"({plain_yaml.reason(error)})"
        ) from None


def _lines(model: type[BaseModel], error: ValidationError) -> list[str]:
    lines = []
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else ""
        if problem["type"] in ("value_error", "assertion_error"):
            message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{name}: {message}" if name else message)
            continue
        value = problem["input"]
        near = ""
        kind, _ = _plain_type(model.model_fields[name])
        if get_origin(kind) is Literal:
            near = suggestion(str(value), get_args(kind))
        if kind in (str, Path) and isinstance(value, int | float):
            lines.append(f"{name}: {_not_a_text(value)}")
            continue
        shown = shorten(value if isinstance(value, str) else repr(value), 60)
        lines.append(f"{name}: {shown} is not allowed; give {allowed(model, name)}{near}")
    return lines


def _not_a_text(value: float | bool) -> str:
    """What to do about a text that YAML reads as something else."""
    if isinstance(value, bool):
        return f"{str(value).lower()} is no text in YAML, nor are yes, no, on and off; put it in quotes"
    return f"{shorten(str(value), 60)} is a number in YAML; put what you wrote in quotes"


def allowed(model: type[BaseModel], name: str) -> str:
    """What a field takes, in words: ``a number above 0 and at most 1``, and that it may be left out."""
    field = model.model_fields[name]
    kind, optional = _plain_type(field)
    if get_origin(kind) is Literal:
        text = "one of " + ", ".join(get_args(kind))
    elif get_origin(kind) is dict:
        text = "names and values such as {nesterov: true}"
    else:
        words = {int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}
        text = words.get(kind, "a text")
    limits = []
    for limit in field.metadata:
        if isinstance(limit, Gt):
            limits.append(f"above {limit.gt}")
        elif isinstance(limit, Ge):
            limits.append(f"of at least {limit.ge}")
        elif isinstance(limit, Lt):
            limits.append(f"below {limit.lt}")
        elif isinstance(limit, Le):
            limits.append(f"at most {limit.le}")
    text = " ".join([text, " and ".join(limits)]).strip()
    if not optional:
        return text
    unset = _description(field).partition("unset: ")[2]
    return f"{text}, or leave {name} out{f' ({unset})' if unset else ''}"

"""YAML of unknown origin as plain data: bounded memory and time, and one kind of error.

PyYAML's safe loader runs no code, but merge keys let a small file grow beyond all memory, the numbers
of YAML 1.1 take quadratic time (``1:1:1:…``) or cannot be shown (``0xfff…``), and some tags fail in ways
of their own. Callers limit the length of what they read.
"""

from typing import Any

import yaml

MAX_NUMBER = 400
"""Characters. Longer ones are beyond every number that means something here."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class PlainLoader(yaml.SafeLoader):
    """SafeLoader without merge keys and long numbers. Aliases stand for one object, not for copies."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, "merge keys are not allowed here", key.start_mark
                )

    def construct_scalar(self, node: Any) -> Any:
        if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER:
            problem = f"a number of {len(node.value)} characters"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_scalar(node)


def load(text: str | bytes, loader: type[PlainLoader] = PlainLoader) -> Any:
    """The value of one YAML document. Raises yaml.YAMLError, and nothing else."""
    try:
        return yaml.load(text, loader)
    except yaml.YAMLError:
        raise
    except Exception as error:  # of tags: IndexError for !!int "", KeyError for !!bool x, ...
        raise yaml.YAMLError(str(error) or type(error).__name__) from None

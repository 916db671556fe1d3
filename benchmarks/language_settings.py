"""What a run of the language study is: every setting that tells it from another one."""

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
"""One line of a results file: a run's settings and its results."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run. What a method does not have is None."""

    method: str
    """"dense", "ggs", "gs" or a rival, see ``language_methods``."""
    optimizer: str = "adamw"
    """The inner optimizer, see ``language_optimizers``."""
    lr: float
    """The highest of the schedule."""
    momentum: float = 0.9
    """beta1, or what the optimizer calls its momentum."""
    density: float | None = None
    """Share of the elements that a worker sends in an exchange."""
    values: str | None = None
    """How a sent value travels: "fp32", "bf16", "int8", "int4" or "sign"."""
    warmup_steps: int = 0
    """Steps in which the method sends more, or all, first."""
    every: int = 1
    """Steps from one exchange to the next."""
    options: dict[str, Any] = field(default_factory=dict)
    """The method's own settings."""
    width: int = 64
    """Of the transformer."""
    steps: int = 500
    workers: int = 4
    batch_size: int = 8
    """Sequences of one worker in a step."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps % self.every:
            raise ValueError(
                f"every is {self.every}: {self.steps} steps would end between two exchanges"
            )

    def __str__(self) -> str:
        given = [f"{name}={value}" for name, value in dataclasses.asdict(self).items()
                 if name not in ("method", "options") and value != _DEFAULTS.get(name)]  # fmt: skip
        return " ".join([self.method, *given, *(f"{k}={v}" for k, v in self.options.items())])


_DEFAULTS = {f.name: f.default for f in dataclasses.fields(Setting)}
NAMES = tuple(_DEFAULTS)


def identity(row: Row) -> str:
    """The part of a row that says which run it is of."""
    return json.dumps([row[name] for name in NAMES], sort_keys=True)

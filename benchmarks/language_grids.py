"""The grids of the language study: lists of runs by name, the first seed of everything first.

Every run says all its settings, so that no default of the library changes what a grid means. A method is
tuned over three learning rates, as dense training is.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from language_settings import Setting

SEEDS = (0, 1, 2)
DENSITIES = (0.001, 0.004, 0.01, 0.04, 0.1, 1.0)
MOMENTA = (0.0, 0.3, 0.5, 0.7, 0.8, 0.9)
LEARNING_RATES = (3e-3, 6e-3, 1.2e-2)
"""Of methods with AdamW."""
DEMO_LEARNING_RATES = (3e-4, 1e-3, 3e-3)
DILOCO = {"outer_lr": 0.7, "outer_momentum": 0.9}
GGS = Setting(method="ggs", lr=6e-3, momentum=0.5, density=0.01, values="sign")
DENSE = Setting(method="dense", lr=6e-3)


def _with(base: Setting, **changes: Any) -> Setting:
    return dataclasses.replace(base, **changes)


def _momentum(lr: float) -> Iterator[Setting]:
    """Which momentum suits which density; and which dense training wants."""
    for momentum in MOMENTA:
        for density in DENSITIES:
            yield _with(GGS, density=density, momentum=momentum, lr=lr)
        yield _with(DENSE, momentum=momentum, lr=lr)


def _values() -> Iterator[Setting]:
    """The formats at one density, and at about the bytes of fp32 at 0.1 % (see ``bytes_per_step``)."""
    for momentum in (0.5, 0.9):
        for values in ("fp32", "bf16", "int8", "int4", "sign"):
            yield _with(GGS, values=values, momentum=momentum)
        for values, density in (("fp32", 0.001), ("bf16", 0.0016), ("int8", 0.0023), ("int4", 0.003),
                                ("sign", 0.004)):  # fmt: skip
            yield _with(GGS, values=values, density=density, momentum=momentum)


def _warmup() -> Iterator[Setting]:
    """Whether a density warm-up is worth its bytes."""
    for density in (0.001, 0.004, 0.01):
        for steps in (0, 10, 25, 50, 100):
            yield _with(GGS, density=density, warmup_steps=steps)


def _local() -> Iterator[Setting]:
    """GGS with local steps at about the bytes that it sends at 0.4 % and at 1 % in every step."""
    for momentum in (0.5, 0.9):
        for every in (1, 2, 4, 10):
            for density in (0.004, 0.01):
                yield _with(GGS, density=density * every, every=every, momentum=momentum)


def _follow() -> Iterator[Setting]:
    """Momentum that follows the density, from 0.9: with and without a density warm-up."""
    for momentum in (0.9, 0.7):
        base = _with(GGS, momentum=momentum, options={"momentum_follows_density": True})
        for warmup_steps in (0, 50, 100):
            for density in (0.001, 0.004, 0.0058, 0.01, 0.04):
                yield _with(base, density=density, warmup_steps=warmup_steps)


def _lr() -> Iterator[Setting]:
    """The learning rates of GGS and of dense training."""
    for lr in (1.5e-3, *LEARNING_RATES, 2.4e-2):
        yield _with(DENSE, lr=lr)
        for density in (0.001, 0.004, 0.01):
            yield _with(GGS, density=density, lr=lr)


def _optimizers() -> Iterator[Setting]:
    """Whether other inner optimizers want less momentum too; three learning rates of each."""
    rates = {
        "sgd": (0.1, 0.3, 1.0),
        "nadam": (1.5e-3, 3e-3, 6e-3),
        "rmsprop": (1e-4, 3e-4, 1e-3),
        "lion": (3e-4, 1e-3, 3e-3),
        "muon": (3e-3, 6e-3, 1.2e-2),
    }
    for optimizer, lrs in rates.items():
        for lr in lrs:
            yield _with(DENSE, optimizer=optimizer, lr=lr)
            for momentum in (0.5, 0.9):
                for density in (0.004, 0.04):
                    yield _with(GGS, optimizer=optimizer, lr=lr, density=density, momentum=momentum)


def _targets() -> Iterator[Setting]:
    """GGS by its density, dense training; 0.00093 and 0.0058 send 0.1 % and 0.4 % of dense bytes."""
    for lr in LEARNING_RATES:
        yield _with(DENSE, lr=lr)
        for density in (0.00093, 0.001, 0.004, 0.0058, 0.01, 0.04):
            yield _with(GGS, density=density, lr=lr)


def _rivals() -> Iterator[Setting]:
    """Every method at three learning rates; GGS and dense training are in "targets"."""
    for lr in LEARNING_RATES:
        for rank in (1, 2, 4):
            yield Setting(method="powersgd", lr=lr, warmup_steps=10, options={"rank": rank})
        for every, density in ((4, 0.04), (10, 0.04), (4, 0.01)):
            yield Setting(method="sparseloco", lr=lr, every=every, density=density, values="sign")
        yield Setting(method="sparseloco", lr=lr, every=4, density=0.02, values="int4")
        for warmup_steps in (50, 100):
            yield Setting(method="onebit_adam", lr=lr, warmup_steps=warmup_steps)
        for every in (10, 50):
            yield Setting(method="averaging", lr=lr, every=every)
            yield Setting(method="averaging", lr=lr, every=every, options=DILOCO)
        for density in (0.004, 0.01):
            yield Setting(method="gs", lr=lr, density=density, values="sign")
    for lr in DEMO_LEARNING_RATES:
        for density, values in ((32 / 4096, "fp32"), (32 / 4096, "sign"), (0.001, "sign")):
            yield Setting(method="demo", optimizer="sgd", momentum=0.0, lr=lr, density=density,
                          values=values)  # fmt: skip


GRIDS: dict[str, Callable[[], Iterable[Setting]]] = {
    "momentum": lambda: _momentum(6e-3),
    "momentum-3e-3": lambda: _momentum(3e-3),
    "values": _values,
    "warmup": _warmup,
    "local": _local,
    "follow": _follow,
    "lr": _lr,
    "optimizers": _optimizers,
    "targets": _targets,
    "rivals": _rivals,
}


TITLES = {
    "momentum": "Momentum (beta1) by density, learning rate 0.006",
    "momentum-3e-3": "Momentum (beta1) by density, learning rate 0.003",
    "values": "Formats of values, at one density and at about the bytes of fp32 at 0.1 %",
    "warmup": "Steps of density warm-up",
    "local": "Local steps at about the same bytes",
    "lr": "Learning rates",
    "optimizers": "Other inner optimizers",
    "targets": "GGS by its density (0.00093 and 0.0058 send 0.1 % and 0.4 % of dense bytes)",
    "rivals": "Rivals",
}
"""What the tables are called."""


def runs(names: Iterable[str], seeds: Iterable[int], width: int) -> list[Setting]:
    """Every run of these grids, once. Raises KeyError for an unknown name."""
    found: dict[str, Setting] = {}
    for seed in seeds:
        for name in names:
            for setting in GRIDS[name]():
                run = _with(setting, seed=seed, width=width)
                found.setdefault(repr(run), run)
    return list(found.values())

"""What can be compared with what: the reference, runs that are unlike, and settings that apply."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ggs.report.runs import Run, letter

_OF_NO_INTEREST = frozenset({"run_dir", "overwrite", "dry_run", "checkpoint_dir"})
_OF_SPARSE_RUNS = frozenset(
    {
        "density",
        "density_warmup",
        "every",
        "scope",
        "values",
        "exchange",
        "workers_per_node",
        "dense_below",
    }
)
"""Settings without any effect on a run that sends everything."""


@dataclass(frozen=True)
class _Condition:
    """What runs must have in common for their accuracies to be comparable."""

    name: str
    of: Callable[[Run], Any]
    """None where a run's files do not tell."""


_CONDITIONS = (
    _Condition("steps", lambda run: run.steps),
    _Condition("data", lambda run: run.config.get("data")),
    _Condition("model", lambda run: run.config.get("model")),
    _Condition("number of workers", lambda run: run.summary.world_size if run.summary else None),
)


def reference(runs: Sequence[Run]) -> int:
    """Number of the run that the others are compared with: the only dense one, or else the first."""
    dense = [order for order, run in enumerate(runs) if run.dense]
    return dense[0] if len(dense) == 1 else 0


def comparable(run: Run, base: Run) -> bool:
    """Whether nothing is known that forbids to compare the accuracies of two runs."""
    return not any(_differ([condition.of(run), condition.of(base)]) for condition in _CONDITIONS)


def notices(runs: Sequence[Run]) -> list[str]:
    """What a reader must know before the figures, a sentence or two each."""
    sentences = []
    unlike = [
        f"in {condition.name}: {_list(values)}"
        for condition in _CONDITIONS
        if _differ(values := [condition.of(run) for run in runs])
    ]
    if unlike:
        sentences.append(
            f"These runs differ {'; and '.join(unlike)}. Where they do, their top-1 cannot be compared."
            if len(runs) > 2
            else f"These runs differ {'; and '.join(unlike)}. Their top-1 cannot be compared."
        )
    unfinished = [letter(order) for order, run in enumerate(runs) if run.summary is None]
    if unfinished and len(runs) > 1:
        plural = len(unfinished) > 1
        sentences.append(
            f"{_list(unfinished)} {'have' if plural else 'has'} not finished: the figures are those so far."
        )
    return sentences


def against(runs: Sequence[Run]) -> str:
    """What the differences in the results are differences to; nothing for one run."""
    if len(runs) < 2:
        return ""
    base = reference(runs)
    if sum(run.dense for run in runs) == 1:
        return (
            f"Differences in top-1 are to {letter(base)}, the only dense run: they say what sparsity "
            "costs, as far as one run each can tell."
        )
    return f"Differences in top-1 are to {letter(base)}, the first run given."


@dataclass(frozen=True)
class Names:
    """Names of settings, by what the report does with them."""

    differ: list[str]
    """Those in which runs differ to which they apply."""
    sparse: list[str]
    """Those equal in all sparse runs, which do not apply to the dense ones among the runs."""
    same: list[str]
    """Those equal in all runs."""


def settings(runs: Sequence[Run]) -> Names:
    """Sort the settings of ``runs``. One that applies to none of them is left out."""
    known = dict.fromkeys(name for run in runs for name in run.config)
    names = Names([], [], [])
    for name in known:
        concerned = [run for run in runs if applies(name, run)]
        if name in _OF_NO_INTEREST or not concerned:
            continue
        values = [run.config.get(name) for run in concerned]
        if any(value != values[0] for value in values):
            names.differ.append(name)
        elif len(concerned) < len(runs):
            names.sparse.append(name)
        else:
            names.same.append(name)
    return names


def applies(name: str, run: Run) -> bool:
    """Whether the setting called ``name`` has any effect on ``run``."""
    return not (run.dense and name in _OF_SPARSE_RUNS)


def difference(run: Run, base: Run) -> str | None:
    """How much better ``run`` is than ``base``, in words; None where one was never measured."""
    if not comparable(run, base):
        return "not comparable"
    if run.top1 is None or base.top1 is None:
        return None
    gain = run.top1 - base.top1
    return f"{gain:+.2f} points" if math.isfinite(gain) else None


def _differ(values: Sequence[Any]) -> bool:
    return len({str(value) for value in values if value is not None}) > 1


def _list(values: Sequence[Any]) -> str:
    """Different values in words: ``60, 250 and 1,000``."""
    texts = list(
        dict.fromkeys(
            f"{value:,}" if isinstance(value, int) else str(value)
            for value in values
            if value is not None
        )
    )
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"

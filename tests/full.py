"""Which cases of a large product run every time; the others carry the mark ``full`` (make test-all)."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def reduced(cases: Iterable[tuple[Any, ...]], runs_always: Callable[..., bool]) -> list[Any]:
    """``cases`` for ``pytest.mark.parametrize``: those of which ``runs_always(*case)`` holds unmarked."""
    return [
        pytest.param(*case, marks=() if runs_always(*case) else pytest.mark.full) for case in cases
    ]


def in_full(*values: Any) -> list[Any]:
    """Cases of one argument that only the long form of the tests runs."""
    return [pytest.param(value, marks=pytest.mark.full) for value in values]

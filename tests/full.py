"""Which cases of a large product run every time; the others carry the mark ``full`` (make test-all)."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def reduced(cases: Iterable[tuple[Any, ...]], runs_always: Callable[..., bool]) -> list[Any]:
    """``cases`` for ``pytest.mark.parametrize``: those of which ``runs_always(*case)`` holds unmarked."""
    return [
        pytest.param(*case, marks=() if runs_always(*case) else pytest.mark.full) for case in cases
    ]

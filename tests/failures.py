"""The error of an action that must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

import pytest
from vpatch.errors import Failure, Problem

P = ParamSpec("P")


def problem_of(action: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> Problem:
    """Return the one problem that an action reports; as a string it is the line that the user reads."""
    with pytest.raises(Failure) as caught:
        action(*arguments, **options)
    (problem,) = caught.value.problems
    return problem

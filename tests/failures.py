"""The errors of an action that must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

import pytest
from vpatch.errors import Failure, Problem

P = ParamSpec("P")


def problems_of(action: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> tuple[Problem, ...]:
    """Return the problems that an action reports; each as a string is a line that the user reads."""
    with pytest.raises(Failure) as caught:
        action(*arguments, **options)
    return caught.value.problems


def problem_of(action: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> Problem:
    """Return the one problem that an action reports."""
    (problem,) = problems_of(action, *arguments, **options)
    return problem

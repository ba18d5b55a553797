"""The two tiers: the first, which `python -m tests` runs, and `pytest -m deep`, which has what takes longer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import pytest

deep = partial(pytest.param, marks=pytest.mark.deep)
"""A row of parameters that only the deep tier has, as `pytest.param`."""

T = TypeVar("T")
WHOLE = os.environ.get("VPATCH_TESTS") == "whole"
"""Whether the deep tier leaves out nothing of its longest tests, which then take hours."""

whole = pytest.mark.skipif(not WHOLE, reason="VPATCH_TESTS=whole runs it, as CI does once a week")
"""Marks a test of the deep tier that takes minutes, and shows little that others do not."""


def sampled(cases: Sequence[T], every: int) -> Sequence[T]:
    """Return each `every`-th case, from the first on; all of them if the deep tier is to be `WHOLE`."""
    return cases if WHOLE else cases[::every]

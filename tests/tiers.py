"""The two tiers: the first, which `python -m tests` runs, and `pytest -m deep`, which has what takes longer."""

from __future__ import annotations

from functools import partial

import pytest

deep = partial(pytest.param, marks=pytest.mark.deep)
"""A row of parameters that only the deep tier has, as `pytest.param`."""

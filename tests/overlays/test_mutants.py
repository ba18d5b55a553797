"""Mutants of the modules that the TurboQuant overlays touch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover, select

from tests.overlays.mutant_tests import (
    Subject,
    _rarely_collecting,
    test_a_mutant_is_patched_as_its_twin_or_drifts,
    test_a_patched_mutant_is_applied_only_if_every_added_statement_is_left,
    test_many_mutants,
)

__all__ = [
    "_rarely_collecting",
    "test_a_mutant_is_patched_as_its_twin_or_drifts",
    "test_a_patched_mutant_is_applied_only_if_every_added_statement_is_left",
    "test_many_mutants",
]

pytestmark = pytest.mark.no_cover  # other tests cover the same code; measured, coverage doubles the time

# Each release and overlay, and how many mutants to make.
SUBJECTS = (
    pytest.param(("0.20.2", "turboquant-hybrid", 345), marks=pytest.mark.deep),
    pytest.param(("0.20.2", "turboquant-workspace", 120), marks=pytest.mark.deep),
    pytest.param(("0.21.0", "turboquant-workspace", 90), marks=pytest.mark.deep),
    pytest.param(("0.23.0", "turboquant-workspace", 60), marks=pytest.mark.deep),
)


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda param: f"{param[0]}-{param[1]}")
def subject(request: pytest.FixtureRequest, pristine: Callable[[str], Path]) -> Subject:
    version, name, count = request.param
    return Subject(select(discover(), (name,))[0], pristine(version), count)

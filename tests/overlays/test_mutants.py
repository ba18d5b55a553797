"""Mutants of what the overlays of TurboQuant touch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover, select

from tests.overlays.mutant_tests import (
    Subject,
    test_a_mutant_is_patched_as_its_twin_or_drifts,
    test_a_mutant_of_the_patched_files_is_applied_only_if_all_that_was_made_is_there,
    test_many_mutants,
)

__all__ = [
    "test_a_mutant_is_patched_as_its_twin_or_drifts",
    "test_a_mutant_of_the_patched_files_is_applied_only_if_all_that_was_made_is_there",
    "test_many_mutants",
]

pytestmark = pytest.mark.no_cover  # what they run, others do; measured, it takes twice as long

# A release, an overlay, and how many mutants of it to make.
SUBJECTS = (
    pytest.param(("0.20.2", "turboquant-hybrid", 345), marks=pytest.mark.matrix),
    pytest.param(("0.20.2", "turboquant-workspace", 120), marks=pytest.mark.matrix),
    pytest.param(("0.21.0", "turboquant-workspace", 90), marks=pytest.mark.matrix),
    pytest.param(("0.23.0", "turboquant-workspace", 60), marks=pytest.mark.matrix),
)


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda param: f"{param[0]}-{param[1]}")
def subject(request: pytest.FixtureRequest, pristine: Callable[[str], Path]) -> Subject:
    version, name, count = request.param
    return Subject(select(discover(), (name,))[0], pristine(version), count)

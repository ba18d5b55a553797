"""Mutants of the modules that the other overlays touch."""

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

pytestmark = [pytest.mark.no_cover, pytest.mark.deep]  # other tests cover the same code

# Each release and overlay, and how many mutants to make.
SUBJECTS = (
    ("0.21.0", "turboquant-skip-list", 60),
    ("0.26.0", "turboquant-auto-dtype", 120),
    ("0.24.0", "turboquant-tiles", 100),
    ("0.20.2", "turboquant-tiles", 120),
    *((release, "ct-fp8-lm-head", 345) for release in ("0.18.0", "0.20.2", "0.23.0", "0.33.0")),
)


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda param: f"{param[0]}-{param[1]}")
def subject(request: pytest.FixtureRequest, pristine: Callable[[str], Path]) -> Subject:
    version, name, count = request.param
    return Subject(select(discover(), (name,))[0], pristine(version), count)

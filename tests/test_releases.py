"""The first tier's releases stand for all: each shape and state of each part of an overlay is on one of them.

Except what depends on a folder that only the whole wheel has: tests in the first tier give it to a release's tree.
"""

from __future__ import annotations

import json

import pytest
from vpatch.core.catalogue import discover

from tests.engines import engine_of
from tests.readme import RECORD
from tests.releases import FACTS, RELEASES, SAME_TURBOQUANT, SHAPES, tree_of

DEEP = ("hybrid-mtp-states", "overlap-fused")
"""An overlay and a part whose five shapes differ in the place of a loop; the deep tier has them all."""
LISTED = {("sm12x-deepgemm", "claim", "pending", "0.24")}
"""Shapes of the first tier that no release in it has: those of trees whose listing a test made."""


ALONE = {("ampere-fp8", "cutlass", "pending", "0.29")}
"""Shapes of releases that have nothing else of their own; the tests of these overlays name the release."""


def test_the_first_tier_has_every_shape() -> None:
    found = {
        row["vllm"]: {
            (overlay["id"], part["name"], part["state"], part["shape"])
            for overlay in row["overlays"]
            for part in overlay["parts"]
            if (overlay["id"], part["name"]) != DEEP
        }
        for row in json.loads(RECORD.read_text())["rows"]
    }

    assert found.keys() == set(RELEASES)
    assert set().union(*found.values()) - set().union(*(found[release] for release in SHAPES)) <= LISTED | ALONE


@pytest.mark.deep
@pytest.mark.parametrize(("one", "other"), SAME_TURBOQUANT.items())
def test_releases_with_the_same_turboquant(one: str, other: str) -> None:
    items = [item for item in discover() if item.id in FACTS and item.id.startswith("turboquant-")]
    files = [file for file in engine_of(items).files if not file.endswith("/")]
    found = [
        [path.read_bytes() for file in files if (path := tree_of(release) / file).is_file()] for release in (one, other)
    ]

    assert found[0] == found[1]
    assert len(found[0]) > 10

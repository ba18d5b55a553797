"""The recorded matrix is of these overlays. `test_command.py` compares it with the releases."""

from __future__ import annotations

from vpatch.core.catalogue import discover
from vpatch.matrix.verdicts import read_rows

from tests.readme import RECORD, STALE
from tests.releases import FACTS, RELEASES, fact

ROWS = read_rows(RECORD)


def test_the_record_is_of_these_overlays_and_what_the_facts_say() -> None:
    found = {(row.name, cell.verdict.id): cell.verdict.state for row in ROWS for cell in row.cells}

    assert {overlay for _, overlay in found} == {item.id for item in discover()}, STALE
    assert found == {(release, overlay): fact(overlay, release) for release in RELEASES for overlay in FACTS}, STALE

"""README says what the overlays say."""

from __future__ import annotations

import pytest

from tests.readme import README, fresh, overlays


def test_the_table_of_overlays_is_fresh() -> None:
    text = README.read_text()

    assert text == fresh(text, "overlays", overlays()), "run `python -m tests.readme`"


def test_a_stale_table_is_found() -> None:
    text = README.read_text()
    stale = text.replace("| `turboquant-hybrid` |", "| `turboquant-hybrids` |", 1)

    assert stale != text
    assert fresh(stale, "overlays", overlays()) == text


def test_no_place_for_a_table() -> None:
    with pytest.raises(ValueError, match="0 places"):
        fresh("# vpatch\n", "matrix", "")

"""What a count of old and new code says, as a table."""

from __future__ import annotations

import pytest
from vpatch.core.edits import classify
from vpatch.core.parse import Lost
from vpatch.core.verdict import Found, Landed

ONE, TWO = ((("body", 0),), (("body", 1),))


@pytest.mark.parametrize(
    ("old", "new", "ours", "count", "found"),
    [
        ([[ONE]], [], (), 1, Found.BEFORE),
        ([[ONE]], [[TWO]], (), 1, Found.BEFORE),
        ([[ONE], [TWO]], [], (), 2, Found.BEFORE),
        ([], [[ONE]], (), 1, Found.AFTER),
        ([], [[ONE]], (ONE,), 1, Found.AFTER),
        ([], [], (), 1, None),
        ([[ONE]], [[TWO]], (TWO,), 1, None),
        ([[ONE]], [], (), 2, None),
        ([], [[ONE], [TWO]], (), 1, None),
    ],
)
def test_classify(
    old: list[list[tuple[tuple[str, int], ...]]],
    new: list[list[tuple[tuple[str, int], ...]]],
    ours: tuple[tuple[tuple[str, int], ...], ...],
    count: int,
    found: Found | None,
) -> None:
    def judged() -> Found:
        return classify(
            old, new, frozenset(ours), count=count, wanted="`x`", hint=lambda: "; hint", landed=Landed
        ).found

    if found:
        assert judged() is found
    else:
        with pytest.raises(Lost, match=r"`x` is .*; hint"):
            judged()

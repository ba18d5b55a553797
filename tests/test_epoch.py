"""SOURCE_DATE_EPOCH is read in one way, whatever vpatch makes."""

from __future__ import annotations

import random

import pytest
from vpatch.errors import Failure
from vpatch.settings import rfc3339, source_date_epoch

LAST = 253_402_300_799
BAD = ["soon", "-5", "1.5", "1e9", " 7", "٣", "0x10", "1" * 30, "9" * 100_000, str(LAST + 1), str(2**63)]


@pytest.mark.parametrize("text", BAD, ids=[text[:12] for text in BAD])
def test_what_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", text)

    with pytest.raises(Failure, match=r"bad SOURCE_DATE_EPOCH: .*: not a number of seconds from 1970 to 9999$"):
        source_date_epoch()


def test_what_is_a_time_has_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = random.Random(7)  # noqa: S311 - a test draws
    for seconds in [0, LAST, *(drawn.randrange(LAST) for _ in range(200))]:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(seconds))
        assert source_date_epoch() == seconds
        assert len(rfc3339(seconds)) == len("2026-11-26T00:00:00Z")


def test_without_it_the_time_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "")

    assert source_date_epoch() is None
    assert rfc3339(source_date_epoch()) > "2026"

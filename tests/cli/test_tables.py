"""Tables of states fit a terminal."""

from __future__ import annotations

from vpatch.cli.verdicts import table

ROWS = [("  one", "applied", "a few words that do not fit in one line"), ("  another-one", "merged", "")]


def test_remarks_are_broken_in_their_column() -> None:
    assert [line.text for line in table(ROWS, 48)] == [
        "  one          applied  a few words that do not",
        "                        fit in one line",
        "  another-one  merged",
    ]


def test_a_word_that_is_too_long_for_its_column_stands_below() -> None:
    rows = [("  one", "applied", f"has {'x' * 30} there"), *ROWS[1:]]

    assert [line.text for line in table(rows, 48)] == [
        "  one          applied",
        f"      has {'x' * 30} there",
        "  another-one  merged",
    ]


def test_a_pipe_gets_one_line_a_row() -> None:
    assert next(line.text for line in table(ROWS, None)).endswith("  a few words that do not fit in one line")

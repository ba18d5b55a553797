"""Tables of states fit a terminal."""

from __future__ import annotations

from vpatch.cli.verdicts import table

ROWS = [("  one", "applied", "a few words that do not fit in one line"), ("  another-one", "merged", "")]


def test_a_remark_that_does_not_fit_stands_below() -> None:
    assert [line.text for line in table(ROWS, 40)] == [
        "  one          applied",
        "      a few words that do not fit in one",
        "      line",
        "  another-one  merged",
    ]


def test_a_pipe_gets_one_line_a_row() -> None:
    assert next(line.text for line in table(ROWS, None)).endswith("  a few words that do not fit in one line")

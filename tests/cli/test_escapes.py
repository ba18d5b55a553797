"""Text from an image, a wheel or a file is escaped once, when the program prints it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from vpatch.cli import output
from vpatch.cli.output import Grid, Report, TextReport, show, tell
from vpatch.cli.wording import Line, rows, table
from vpatch.core.verdict import PartVerdict, State, Verdict
from vpatch.errors import Problem
from vpatch.wrapping import printable

from tests.cli.conftest import rewrite
from tests.conftest import Program
from tests.hybrid import CONFIG, ONLY
from tests.terminals import written

EVIL = "a\x1b[2J\x1b]0;owned\x07\rb\nforged: applied\x9b1m\u202e\u2028\udcff\xa0"
SEEN = r"a\x1b[2J\x1b]0;owned\x07\rb\nforged: applied\x9b1m\u202e\u2028\udcff\xa0"


def test_what_is_escaped() -> None:
    assert printable(EVIL) == SEEN
    assert printable(SEEN) == SEEN, "once"
    assert printable("na\udcc3\udcafve\n") == r"na\xefve\n".replace(r"\xef", "\xef"), "read in an ASCII locale"
    assert printable("half \ud800") == r"half \ud800"
    assert printable("tabs\tand words, \u00e4, \u65e5\u672c, \u2588") == "tabs\tand words, \u00e4, \u65e5\u672c, \u2588"


@pytest.mark.parametrize("terminal", [True, False])
def test_every_output_is_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, terminal: bool
) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda stream: terminal)
    monkeypatch.setattr(output, "_width", lambda stream: None)

    @dataclass(frozen=True, kw_only=True)
    class Drawn(Report):
        """A report that draws itself."""

        drawn: Iterable[Line] | Grid

        def shown(self, width: int | None) -> Iterable[Line] | Grid:
            return self.drawn

    part = PartVerdict(EVIL, State.PENDING, EVIL, (EVIL,))
    for one in (
        Drawn(drawn=[*table([*rows([Verdict(EVIL, (part,))], parts=True)], None)]),
        Drawn(drawn=Grid([("a", "b"), (EVIL, "b")])),
        TextReport(lines=[EVIL], problems=[Problem(EVIL, EVIL, EVIL, EVIL)]),
        TextReport(cautions=[EVIL], notes=[EVIL], outcome=EVIL),
    ):
        show(one)
    tell(EVIL)

    told = click.unstyle("".join(capsys.readouterr()))
    assert [line for line in told.split("\n") if not line.replace("\t", "").isprintable()] == []
    assert told.count(SEEN) >= 8
    assert "\nforged" not in told


def test_json_keeps_the_exact_text(capsys: pytest.CaptureFixture[str]) -> None:
    show(TextReport(lines=[EVIL], object={"label": EVIL}), "x")

    out = capsys.readouterr().out
    assert out.removesuffix("\n").isprintable()
    assert json.loads(out)["label"] == EVIL


def test_a_diff_is_exact_in_a_pipe_and_escaped_on_a_terminal(tree: Path, vpatch: Program) -> None:
    data = (tree / CONFIG).read_bytes().replace(b"import math\n", b"import math  # \x1b[2J\n", 1)
    assert b"\x1b" in data
    rewrite(tree / CONFIG, data)

    assert "\x1b[2J" in vpatch("diff", tree, *ONLY).out
    seen = written("diff", "-q", tree, *ONLY, env={"NO_COLOR": "1"})
    assert "\x1b" not in seen
    assert r"import math  # \x1b[2J" in seen


def test_a_bugs_traceback(monkeypatch: pytest.MonkeyPatch, vpatch: Program) -> None:
    def bug(*_: object) -> None:
        raise RuntimeError(EVIL)

    monkeypatch.setattr("vpatch.cli.overlays.discover", bug)
    ran = vpatch("list")

    assert ran.code == 3
    assert all(line.isprintable() for line in ran.err.split("\n"))
    assert SEEN.partition(r"\n")[2] in ran.err, "a traceback has lines"

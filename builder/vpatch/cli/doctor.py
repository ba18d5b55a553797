"""The command that finds out why a server does not run what overlays changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from vpatch.cli.options import examples, reported, unwinding
from vpatch.cli.output import Report
from vpatch.cli.progress import phases
from vpatch.cli.target import Target, on_tree
from vpatch.cli.verdicts import Line
from vpatch.cli.wording import counted, listed
from vpatch.doctor.examination import Section, examine, sections
from vpatch.doctor.probes import Probed, probe
from vpatch.doctor.subject import Finding, Level
from vpatch.errors import Problem
from vpatch.wrapping import wrapped

_COLORS = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.PROBLEM: "red"}
_WIDTH = max(map(len, Level))
_BELOW = " " * (_WIDTH + 4)  # below a level
_MOST = 3  # places that a finding shows without -v


@click.command(
    "doctor",
    epilog=examples("doctor", "doctor .venv", "doctor --python /opt/vllm/bin/python", "doctor -v", "doctor --run"),
)
@reported
@on_tree(both=True)
@click.option("--run", "runs", is_flag=True, help="Also run vLLM's functions, to see whether each defect is there.")
def doctor_command(target: Target, *, runs: bool) -> Report:
    """Find out why a server still does not work. Changes nothing.

    It examines the overlays, vLLM's files, other code that patches vLLM, GPU and driver, compile caches, and running
    servers. Each finding has a level (ok, note, warning, problem) and, below an arrow, what to do. If one is a problem,
    the exit code is 1.

    With --run, it also runs a script of each overlay, its probe, by the interpreter of this vLLM. The probe calls
    vLLM's own functions, and reports whether the defect is there. It needs no GPU. Each has two minutes.
    """
    located = target.locate(imports=runs)
    subject = examine(located, target.selection, target)
    found = sections(subject)
    probed: list[Probed] = []
    if runs:
        unwinding()
        with phases() as show:
            probed, findings = probe(subject, show or str)
        found.append(Section("Probes, run by this vLLM's Python", findings))
    every = [finding for section in found for finding in section.findings]
    problems = [_problem(finding, str(located.tree.root)).as_json() for finding in _of(every, Level.PROBLEM)]
    return Report(
        "doctor",
        str(located.tree.root),
        located.tree.version,
        subject.verified.overlays,
        extra={
            "problems": problems,
            "findings": [finding.as_json() for finding in every],
            "probes": [answer for one in probed for answer in one.as_json()],
        },
        drawn=partial(_lines, found, every_place=target.verbose),
        failed=bool(problems),
        offer="" if runs or problems else f"To run vLLM's functions, too: {target.again('doctor', '--run')}",
        outcome=_outcome(every),
    )


def _lines(found: Sequence[Section], width: int | None, *, every_place: bool) -> Iterator[Line]:
    for section in found:
        if section.findings:
            yield Line(section.title)
        for finding in section.findings:
            yield from _shown(finding, width, every_place=every_place)


def _shown(finding: Finding, width: int | None, *, every_place: bool) -> Iterator[Line]:
    here = f"{Path.cwd()}/"
    places = [place.removeprefix(here) for place in finding.where[: None if every_place else _MOST]]
    more = f" and {len(finding.where) - len(places)} more" if len(places) < len(finding.where) else ""
    text = f"{finding.what} ({', '.join(places)}{more})" if places else finding.what
    # The level is in the indentation, so that a long first line is broken at the right column.
    start = f"  {finding.level:<{_WIDTH}}  "
    first, *rest = wrapped(text, width, start, _BELOW)
    yield Line(first, finding.level, _COLORS[finding.level])
    yield from map(Line, rest)
    if finding.do:
        yield from map(Line, wrapped(f"→ {finding.do}", width, _BELOW, f"{_BELOW}  "))


def _problem(finding: Finding, root: str) -> Problem:
    return Problem(finding.name, ", ".join(finding.where) or root, finding.what)


def _of(found: Sequence[Finding], level: Level) -> list[Finding]:
    return [finding for finding in found if finding.level is level]


def _outcome(found: Sequence[Finding]) -> str:
    """Return the last line: how many findings of each level there are."""
    counts = {level: len(_of(found, level)) for level in (Level.PROBLEM, Level.WARNING, Level.NOTE)}
    others = listed([counted(number, level) for level, number in counts.items() if number])
    if counts[Level.PROBLEM]:
        return f"{others}. What to do is below each."
    return f"No problem found: {others}." if others else "No problem found."

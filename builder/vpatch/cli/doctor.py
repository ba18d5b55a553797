"""The command that finds out why a server does not run what overlays changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from vpatch.cli.options import examples, reported, unwinding
from vpatch.cli.output import Report
from vpatch.cli.progress import phases
from vpatch.cli.target import Target, on_tree
from vpatch.cli.wording import Line, as_objects, counted, listed, noted
from vpatch.doctor.examination import Section, examine, sections
from vpatch.doctor.probes import Probed, probe
from vpatch.doctor.subject import Finding, Level, Subject
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
    every = _findings(found)
    failed = bool(_of(every, Level.PROBLEM))
    offer = f"To run vLLM's functions, too: {target.again('doctor', '--run')}"
    return DoctorReport(
        subject=subject,
        sections=found,
        probed=probed,
        verbose=target.verbose,
        notes=noted((), subject.verified.overlays),
        failed=failed,
        offer="" if runs or failed else offer,
        outcome=_outcome(every),
    )


@dataclass(frozen=True, kw_only=True)
class DoctorReport(Report):
    """The report of `doctor`: what was found about a vLLM, and what its probes answered."""

    subject: Subject
    sections: Sequence[Section]
    probed: Sequence[Probed]
    verbose: bool

    def fields(self) -> Mapping[str, Any]:
        """Return the findings; each problem is among the problems, too."""
        tree, found = self.subject.tree, _findings(self.sections)
        problems = [
            Problem(one.name, ", ".join(one.where) or str(tree.root), one.what) for one in _of(found, Level.PROBLEM)
        ]
        return {
            "tree": str(tree.root),
            "vllm": tree.version,
            "overlays": as_objects(self.subject.verified.overlays),
            "problems": [problem.as_json() for problem in problems],
            "findings": [finding.as_json() for finding in found],
            "probes": [answer for one in self.probed for answer in one.as_json()],
        }

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield the findings of each section."""
        for section in self.sections:
            if section.findings:
                yield Line(section.title)
            for finding in section.findings:
                yield from _shown(finding, width, every_place=self.verbose)


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


def _findings(found: Sequence[Section]) -> list[Finding]:
    return [finding for section in found for finding in section.findings]


def _of(found: Sequence[Finding], level: Level) -> list[Finding]:
    return [finding for finding in found if finding.level is level]


def _outcome(found: Sequence[Finding]) -> str:
    """Return the last line: how many findings of each level there are."""
    counts = {level: len(_of(found, level)) for level in (Level.PROBLEM, Level.WARNING, Level.NOTE)}
    summary = listed([counted(number, level) for level, number in counts.items() if number])
    if counts[Level.PROBLEM]:
        return f"{summary}. What to do is below each."
    return f"No problem found: {summary}." if summary else "No problem found."

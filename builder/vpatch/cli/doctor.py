"""The command that finds out why a server does not run what overlays changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from vpatch.cli.options import PathType, examples, reported, unwinding
from vpatch.cli.output import Report, fitted
from vpatch.cli.progress import phases
from vpatch.cli.target import Target, on_tree
from vpatch.cli.wording import Line, as_objects, counted, listed, noted
from vpatch.core.overlay import Catalogued
from vpatch.doctor import log, overlays
from vpatch.doctor.examination import Section, examine, sections
from vpatch.doctor.probes import Probed, probe
from vpatch.doctor.subject import Finding, Level, Subject
from vpatch.errors import Failure, Problem
from vpatch.known.logs import Tail
from vpatch.wrapping import wrapped

_COLORS = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.PROBLEM: "red"}
_WIDTH = max(map(len, Level))
_BELOW = " " * (_WIDTH + 4)  # below a level
_MOST = 3  # places that a finding shows without -v


@click.command(
    "doctor",
    epilog=examples(
        *("doctor", "doctor .venv", "doctor --python /opt/vllm/bin/python", "doctor -v", "doctor --run"),
        "doctor --log server.log",
    ),
)
@reported
@on_tree(both=True)
@click.option("--run", "runs", is_flag=True, help="Also run vLLM's functions, to see whether each defect is there.")
@click.option(
    "--log",
    "logged",
    type=PathType(exists=True, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Also search this log of the server for known error lines (-: standard input).",
)
def doctor_command(target: Target, *, runs: bool, logged: Path | None) -> Report:
    """Find out why a server still does not work. Changes nothing.

    It examines the overlays, vLLM's files, other code that patches vLLM, GPU and driver, compile caches, and running
    servers. Each finding has a level (ok, note, warning, problem) and, below an arrow, what to do. If one is a problem,
    the exit code is 1.

    With --run, it also runs a script of each overlay, its probe, by the interpreter of this vLLM. The probe calls
    vLLM's own functions, and reports whether the defect is there. It needs no GPU. Each has two minutes.

    With --log, it also names the overlay or the cause of each error line in a log that is known. It reads the last
    16 MiB of the log. Of the overlays that are not applied, it shows what you may see where the log's model and
    options may need them.
    """
    read = log.read(logged) if logged else None
    located = target.locate(imports=runs)
    subject = examine(located, target.selection, target)
    found = sections(subject)
    if read is not None:
        found.append(Section("Log", [*log.findings(subject, read)]))
    probed: list[Probed] = []
    if runs:
        unwinding()
        with phases() as show:
            probed, findings = probe(subject, show or str)
        found.append(Section("Probes, run by this vLLM's Python", findings))
    every = _findings(found)
    failed = bool(_of(every, Level.PROBLEM))
    pending, notes = [] if failed else overlays.unapplied(subject), noted((), subject.verified.overlays)
    if read and pending:
        pending, note = _concerned(pending, read, located.tree.version)
        notes = [*notes, note]
    offer = f"To run vLLM's functions, too: {target.again('doctor', '--run')}"
    return DoctorReport(
        subject=subject,
        sections=found,
        probed=probed,
        verbose=target.verbose,
        unapplied=pending,
        notes=notes,
        failed=failed,
        offer="" if runs or failed else offer,
        outcome=_outcome(every, pending),
    )


def _concerned(found: list[Catalogued], log: Tail, vllm: str | None) -> tuple[list[Catalogued], str]:
    """Return the overlays that what a log started may need, all if that is not known, and a note of it."""
    from vpatch.cli.plan_log import concerned  # late: only a log needs plan

    try:
        own, of = concerned(log.text, vllm, found)
    except Failure as failure:
        why = failure.problems[0]
        return found, f"the log does not show which overlays its server needs: {why.where}: {why.cause}"
    return own, f"the log is of {of}: {len(own)} of {counted(len(found), 'overlay')} not applied may concern it"


@dataclass(frozen=True, kw_only=True)
class DoctorReport(Report):
    """The report of `doctor`: what was found about a vLLM, what its probes answered, and what is not applied to it."""

    subject: Subject
    sections: Sequence[Section]
    probed: Sequence[Probed]
    verbose: bool
    unapplied: Sequence[Catalogued]

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
        if self.unapplied:
            yield Line("What you may see, since these overlays are not applied")
        for item in self.unapplied:
            yield Line(f"  {item.id}")
            yield from fitted([f"    {symptom}" for symptom in item.overlay.symptoms], width)


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


def _outcome(found: Sequence[Finding], unapplied: Sequence[Catalogued]) -> str:
    """Return the last line: how many findings of each level there are, and what is not applied."""
    counts = {level: len(_of(found, level)) for level in (Level.PROBLEM, Level.WARNING, Level.NOTE)}
    summary = listed([counted(number, level) for level, number in counts.items() if number])
    if counts[Level.PROBLEM]:
        return f"{summary}. What to do is below each."
    if unapplied:
        left = f"{counted(len(unapplied), 'overlay')} not applied: look for what you see in the list above"
        return f"{summary}. {left}." if summary else f"{left}."
    return f"No problem found: {summary}." if summary else "No problem found."

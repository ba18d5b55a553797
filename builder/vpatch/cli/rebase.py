"""The command rebase: a draft of a patch file for a vLLM that it does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path
from typing import Any

import click
from packaging.version import Version

from vpatch.cli.options import (
    PathType,
    check_outfile,
    examples,
    force_option,
    introduce_project,
    project,
    refuse_dash,
    reported,
    with_project,
    write_outfile,
)
from vpatch.cli.output import Report, fitted
from vpatch.cli.target import next_steps
from vpatch.cli.wording import Line, command, counted, diff_line, table
from vpatch.core.catalogue import id_of, loaded
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.core.patch_file import SUFFIX, PatchFile
from vpatch.core.shapes import shape_name, shapes
from vpatch.core.sources import PatchBytes
from vpatch.core.verdict import MISFITS, State, Verdict
from vpatch.errors import Failure, Problem, UnknownName, closest, naming
from vpatch.porting.bases import PatchBase, base_named, base_of, decoded
from vpatch.porting.merging import Conflict
from vpatch.porting.rebasing import Draft, begun, draft
from vpatch.porting.scratch import contents
from vpatch.project import opened
from vpatch.settings import rfc3339, source_date_epoch, user_name

PROVEN = (
    "it makes valid Python, and the check of inserted code finds nothing new",
    "a second run changes nothing",
    "its own result, without marks, is recognized as merged",
    "revert restores each byte",
)
"""What was proven of a draft, for people."""
_ROWS = 24  # of a conflict; those of a module that is another one altogether would fill screens


@dataclass(frozen=True, kw_only=True)
class RebaseReport(Report):
    """What came of a patch file for another vLLM, with the draft if one was needed and found."""

    file: Path
    target: PatchBase
    verdict: Verdict
    draft: Draft | None = None
    diff: Sequence[str] = ()
    written: Path | None = None

    def fields(self) -> Mapping[str, Any]:
        """Return the verdict, the draft and where it was written."""
        made = self.draft if self.draft and self.draft.patch else None
        draft = made and {"how": made.how, "text": str(made.patch), "notes": [*made.notes]}
        return {
            "vllm": self.target.version,
            "patch": str(self.file),
            "overlays": [self.verdict.as_json()],
            "draft": draft,
            "changed": [str(self.written)] if self.written else [],
        }

    def shown(self, width: int | None) -> Iterator[Line]:
        """Yield the state, and the draft as a diff of the patch file; or what could not be merged."""
        found = self.draft
        conflicts = found.conflicts if found else []
        rows = [(f"  {self.verdict.id}", str(self.verdict.state), "" if conflicts else self.verdict.because)]
        for one in found.parts if found and not found.patch else ():
            moved = f"moved to {one.place}" if one.place != one.path else ""
            rows.append((f"  {one.path}", "drafted" if one.patch else "no draft", moved))
        yield from table(rows, width)
        if found and found.patch:
            yield Line("")
            yield from fitted([f"A draft: {found.how}. On {self.target.name}:"], width)
            yield from fitted([f"  {sentence}" for sentence in (*PROVEN, *found.notes)], width)
            yield Line("")
            yield from map(diff_line, self.diff)
        for conflict in conflicts:
            yield Line("")
            yield from _side_by_side(conflict, self.target.version, width)


@click.command(
    "rebase",
    epilog=examples("rebase patches/my-fix.vpatch --onto 0.33.0", "rebase my-fix --onto 0.33.0 --accept"),
)
@click.argument("patch")
@reported
@click.option("--onto", metavar="V", required=True, help="The vLLM that it is to fit: a release, or a folder with one.")
@click.option("--accept", is_flag=True, help="Write the draft, beside PATCH.")
@click.option(
    "--by-hand",
    "folder",
    metavar="DIR",
    type=PathType(file_okay=False),
    help="Make it in this folder, which gets the modules to change.",
)
@with_project
@force_option
def rebase_command(patch: str, onto: str, *, accept: bool, folder: Path | None, force: bool) -> Report:
    """Draft a patch file for a vLLM that it does not fit.

    PATCH is a patch file, or the id of one of the project's. vpatch looks for the place to which the definitions moved,
    for a place beside one neighbor, and merges the lines with those of the vLLM that PATCH is for. It shows the first
    draft that it can prove on V, else of which modules it has one.

    Read the draft: that code fits does not say that it still means the same. Nothing is written without --accept, which
    writes NAME@V.vpatch with the date and your name. From then on, vpatch takes NAME.vpatch and NAME@V.vpatch as one
    overlay.

    Without a draft the exit code is 1, and vpatch shows the first lines that both PATCH and vLLM changed. Then make it
    by hand: --by-hand DIR writes the modules of V to DIR, with what could be drafted. Change them there, and run the
    same command again: the draft is what you made.
    """
    if force and not accept:
        raise click.UsageError("--force is for --accept: leave it out")
    found = _found(patch)
    item = loaded(found)
    target = base_named(onto, item.overlay.files)
    file = Path(found.path)
    path = file.with_name(shape_name(file.name, target.version))
    if accept:
        check_outfile(path, force=force)
    report = _rebased(item, found.data, target, path, onto, folder)
    made = report.draft.patch if report.draft else None
    if made is None or not accept:
        return report
    write_outfile(path, str(_signed(made)), force=force)
    outcome = f"Wrote {path}. Next: {next_steps(path.parent, [item.id], onto)}."
    return replace(report, written=path, diff=(), outcome=outcome)


def _found(patch: str) -> PatchBytes:
    """Return a patch file by its path, or by its id in the project."""
    if patch.endswith(SUFFIX) or "/" in patch:
        if Path(patch).is_dir():
            raise Failure(Problem("no patch file", str(Path(patch)), "a folder; name one of its files"))
        return opened([Path(patch)], ignored=True).sources.patches[0]
    introduce_project()
    every = project().sources.patches
    found = [one for one in every if id_of(one.path) == patch]
    if not found:
        known = {id_of(one.path) for one in every}
        hint = closest(patch, known) if known else "name a file, or a folder of them by --patches"
        raise UnknownName(Problem("no patch file", patch, "no patch file of the project has this id", hint=hint))
    if len(found) > 1:
        cause = f"{found[0].path} and {found[1].path} both ship it; name one of them by its path"
        raise Failure(Problem("overlay id taken", patch, cause))
    return found[0]


def _rebased(
    item: Catalogued, data: bytes, target: PatchBase, new: Path, onto: str, folder: Path | None
) -> RebaseReport:
    """Judge the target, which the user called `onto`, and draft the file `new` for it, in `folder` if by hand."""
    file, name = Path(item.source), item.id
    (verdict,) = Engine([item]).status(target.read)
    report = RebaseReport(file=file, target=target, verdict=verdict)
    if verdict.state not in MISFITS:
        return replace(report, outcome=_fits(verdict.state, name, target))
    every = shapes(data)
    if taken := _taken(file.name, every, target):
        cause = f"{taken} has a shape for {target.version}, and {target.name} is another one"
        hint = f"change {taken}, or `vpatch import` the change anew"
        return replace(report, problems=[Problem("no draft", name, cause, hint=hint)], outcome="Nothing was written.")
    patch = _nearest(every, target)
    base, notes = _base(patch)
    others = [(one, read) for one in every if one is not patch and (read := _base(one)[0])]
    mine = _modules(folder, patch) if folder and (folder / "vllm").is_dir() else None
    found = draft(name, patch, base, target, others, mine)
    report = replace(report, draft=found, notes=notes)
    place = folder or Path(f"{name}-{target.version}")
    again = ("rebase", file, "--onto", onto, *(["--by-hand", place] if folder or not found.patch else []))
    if folder and mine is None:
        return _begin(report, folder, begun(name, found, patch, target), command(*again))
    if found.patch is None:
        problems = [Problem("no draft", name, str(why)) for why in found.stopped]
        next_ = f"Change what is in {folder}, and then: " if folder else "To make the change by hand: "
        return replace(report, problems=problems, outcome=f"Nothing was written. {next_}{command(*again)}.")
    before, after = (str(one).splitlines() for one in (patch, found.patch))
    lines = [*unified_diff(before, after, str(file), str(new), lineterm="", n=2)]
    return replace(report, diff=lines, outcome=f"Read it. To write {new}: {command(*again, '--accept')}.")


def _modules(folder: Path, patch: PatchFile) -> Mapping[str, str]:
    """Read the modules that a user changed by hand, and the data files of the patch file."""
    data = {change.path for change in patch.changes if change.is_data}
    with naming("cannot read", str(folder)):
        found = [*contents(folder, ["vllm"])]
    return {path: decoded(path, content) for path, content in found if path.endswith(".py") or path in data}


def _begin(report: RebaseReport, folder: Path, texts: Mapping[str, str], again: str) -> RebaseReport:
    """Write the modules that a user is to change by hand."""
    refuse_dash(folder)
    for path, text in texts.items():
        with naming("cannot write", str(folder / path)):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, "utf-8")
    undone = [one.place for one in report.draft.undone] if report.draft else []
    gone = f"vLLM {report.target.version} has no such module: add the one that has its code now"
    notes = [*report.notes, *(f"{path}: {gone}" for path in undone if path not in texts)]
    change = f"Change {' and '.join(undone)} there" if undone else "They have the draft: change it there"
    outcome = f"Wrote {counted(len(texts), 'module')} to {folder}. {change}, and then: {again}."
    return replace(report, draft=None, notes=notes, outcome=outcome)


def _fits(state: State, name: str, target: PatchBase) -> str:
    if state is State.MERGED:
        return f"vLLM {target.name} has the change: drop {name} there."
    return f"{name} is {state} on vLLM {target.name}: no draft is needed."


def _taken(name: str, found: Sequence[PatchFile], target: PatchBase) -> str:
    """Return the file, other than the draft's, that has a shape for the target's version, or ""."""
    names = [name, *(shape_name(name, one.head["Base"]) for one in found[1:])]
    same = [Version(one.head["Base"]) == Version(target.version) for one in found]
    own = shape_name(name, target.version)
    return next((one for one, equal in zip(names, same, strict=True) if equal and one != own), "")


def _nearest(found: Sequence[PatchFile], target: PatchBase) -> PatchFile:
    """Return the newest shape that is for the target or an older vLLM; if none is, the oldest."""
    ordered = sorted(found, key=lambda one: Version(one.head["Base"]))
    older = [one for one in ordered if Version(one.head["Base"]) <= Version(target.version)]
    return older[-1] if older else ordered[0]


def _base(patch: PatchFile) -> tuple[PatchBase | None, list[str]]:
    """Return the vLLM that a patch file is for, and notes; for a build that no index has, it is the release."""
    version, notes = patch.head["Base"], list[str]()
    for name in dict.fromkeys((version, Version(version).public)):
        try:
            base = base_of(name, [change.path for change in patch.changes])
        except Failure as failure:
            notes.append(str(failure.problems[0]))
        else:
            return base, [f"vLLM {name} was read in place of {version}" for _ in notes]
    return None, notes[-1:]


def _signed(patch: PatchFile) -> PatchFile:
    date = rfc3339(source_date_epoch())[:10]
    return replace(patch, head={**patch.head, "Last-Update": date, "Accepted-By": user_name()})


def _side_by_side(conflict: Conflict, version: str, width: int | None) -> Iterator[Line]:
    """Yield the first lines of a conflict, the base's on the left; on a terminal, each gets half of the width."""
    most, rows = None if width is None else (width - 5) // 2, conflict.rows[:_ROWS]
    column = max(len(left.expandtabs(4)[:most]) for left, _ in rows)
    yield Line(f"{conflict.path}: the vLLM of the patch, and vLLM {version}")
    for pair in rows:
        left, right = (text.expandtabs(4)[:most] for text in pair)
        sign = " " if left == right else "|"
        yield Line(f"  {left:<{column}} {sign} {right}".rstrip(), color="" if sign == " " else "yellow")
    if more := len(conflict.rows) - len(rows):
        yield Line(f"  and {counted(more, 'line')} more")

"""The state of one overlay, from what its edits and predicates find. The order of the questions defines the states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from vpatch.core.edits.data import AddData
from vpatch.core.edits.definitions import AddFile
from vpatch.core.edits.imports import EnsureImport
from vpatch.core.edits.patch import Patch
from vpatch.core.marks import lines_marked, mark
from vpatch.core.overlay import Catalogued, Edit, Part, Predicate, Shape
from vpatch.core.parse import Lost
from vpatch.core.verdict import Answer, EditFinding, Found, PartVerdict, State, Verdict
from vpatch.core.workspace import Workspace
from vpatch.errors import Code, Failure, Problem

Findings: TypeAlias = tuple[tuple[Edit, EditFinding], ...]
Shapes: TypeAlias = Sequence[tuple[Shape, Findings]]


@dataclass(frozen=True)
class JudgedPart:
    """The verdict of one part, with the findings of the matched shape (empty if none matched)."""

    verdict: PartVerdict
    findings: Findings


@dataclass(frozen=True)
class Judgement:
    """The verdict of one overlay, with its judged parts."""

    verdict: Verdict
    parts: tuple[JudgedPart, ...]


def judge(item: Catalogued, files: Workspace) -> Judgement:
    """Judge a tree by one overlay.

    Raises:
        Failure: an edit or a predicate raised an exception.
    """
    looked = [
        [(shape, tuple((edit, find(edit, files, item.id)) for edit in shape.edits)) for shape in part.shapes]
        for part in item.overlay.parts
    ]
    stray = _stray(item.id, [finding for shapes in looked for _, finding in shapes], files)
    parts = [
        _judge_part(part, shapes, item, files, stray) for part, shapes in zip(item.overlay.parts, looked, strict=True)
    ]
    return Judgement(Verdict(item.id, tuple(part.verdict for part in parts)), tuple(parts))


@contextmanager
def blaming(overlay: str, author: object, file: str = "", scope: str = "") -> Iterator[None]:
    """Turn an exception that an edit or a predicate raises into a failure of its overlay.

    Raises:
        Failure: the block raised something else than Failure or Lost.
    """
    try:
        yield
    except (Failure, Lost):
        raise
    except (Exception, SystemExit) as error:
        cause = f"{type(author).__name__} raised {type(error).__name__}: {error}"
        where = f"{overlay}: {file}" if file else overlay
        raise Failure(Problem("overlay failed", where, cause, scope, Code.OVERLAY_FAILED)) from error


def find(edit: Edit, files: Workspace, overlay: str) -> EditFinding:
    """Return what an edit finds; an edit looks once at the same bytes."""
    with blaming(overlay, edit, edit.file, edit.scope):
        known = files.known(edit.file).findings
        found = known.get((edit, overlay))
        if found is None:
            try:
                found = edit.state(files, overlay)
            except Lost as lost:
                # The frames of a traceback would keep the syntax trees alive.
                found = EditFinding(Found.LOST, lost.with_traceback(None))
            known[edit, overlay] = found
        return found


def _ask(predicate: Predicate | None, files: Workspace, overlay: str) -> Answer:
    if predicate is None:
        return Answer(holds=None, because="")
    with blaming(overlay, predicate):
        return predicate.ask(files)


def _stray(overlay: str, looked: Sequence[Findings], files: Workspace) -> tuple[Problem, ...]:
    """Find marks of the overlay that no edit accounts for.

    Somebody edited their code, or another version of the overlay made it. This version would not find its own code
    there, and would make it again.
    """
    explained: dict[str, set[int]] = {}
    for edit, finding in (pair for findings in looked for pair in findings):
        explained.setdefault(edit.file, set()).update(finding.marked)
    problems = []
    for file, ours in sorted(explained.items()):
        lines = [line for line in lines_marked(files.read(file) or b"", overlay) if line not in ours]
        if lines and 0 not in ours:
            others = ", ".join(map(str, lines))
            cause = (
                f"the code that has the mark `{mark(overlay)}` in line {others} is not what this version makes; "
                "if you edited it, undo the edit; if another version made it, apply this one, and if that is refused, "
                "revert before"
            )
            problems.append(Problem("drifted", file, cause))
    return tuple(problems)


def _found(findings: Findings) -> set[Found]:
    return {finding.found for _, finding in findings}


def _telling(findings: Findings) -> list[EditFinding]:
    """Return the findings that show who made the change: not those of imports and companions, which parts may share.

    A new module outside of the companions' folder shows it: upstream can have it, too.
    """
    return [one for edit, one in findings if not _is_shared(edit)] or [finding for _, finding in findings]


def _signing(findings: Findings) -> list[EditFinding]:
    """Return the findings whose marks show that vpatch made the change: the telling ones, and those of data files."""
    companions = {edit.companion for edit, _ in findings if isinstance(edit, AddData)}
    return [*_telling(findings), *(finding for edit, finding in findings if edit in companions)]


def _is_shared(edit: Edit) -> bool:
    match edit:
        case EnsureImport():
            return True
        case AddFile():
            return edit.is_companion
        case Patch():
            return not edit.scope and edit.hunk.imports
    return False


def _all_after(findings: Findings) -> bool:
    return all(finding.found is Found.AFTER for finding in _telling(findings))


def _judge_part(
    part: Part, shapes: Shapes, item: Catalogued, files: Workspace, stray: tuple[Problem, ...]
) -> JudgedPart:
    verdict = PartVerdict(part.name, State.DRIFTED, "", part.files)
    if stray:
        return JudgedPart(replace(verdict, because=stray[0].cause, problems=stray), ())

    whole = [(shape, findings) for shape, findings in shapes if _found(findings) == {Found.AFTER}]
    applied = [pair for pair in whole if any(finding.marked for finding in _signing(pair[1]))]
    if applied:
        shape, findings = applied[0]
        reason = "every change is in place, with its mark"
        return JudgedPart(replace(verdict, state=State.APPLIED, because=reason, shape=shape.name), findings)

    # Whether upstream's code has marks of the overlay; 0 stands for a file that the overlay added.
    ours = any(line for _, findings in shapes for finding in _signing(findings) for line in finding.marked)
    ready = [
        (shape, findings)
        for shape, findings in shapes
        if Found.LOST not in _found(findings) and (ours or shape.when is None or _ask(shape.when, files, item.id).holds)
    ]
    merged = _ask(None if ours else part.merged, files, item.id)
    if merged.holds or whole or (not ours and any(_all_after(one) for _, one in shapes)):
        return JudgedPart(_merged(verdict, merged, ready, part.upstream or item.overlay.upstream), ())

    if ready:
        shape, findings = ready[0]
        todo = sum(finding.found is Found.BEFORE for _, finding in findings)
        some = f"{todo} of {len(findings)}" if todo < len(findings) else str(todo)
        reason = f"matches the {shape.name} layout; {some} change{'s' * (len(findings) > 1)} to make"
        return JudgedPart(replace(verdict, state=State.PENDING, because=reason, shape=shape.name), findings)

    absent = _ask(part.absent, files, item.id)
    if absent.holds:
        verdict = replace(verdict, state=State.NOT_APPLICABLE, because=absent.reason, brief=absent.meaning)
        return JudgedPart(verdict, ())
    when = {shape.name: _ask(shape.when, files, item.id) for shape, _ in shapes}
    return JudgedPart(_drifted(verdict, _closest(shapes, files), when, (merged, absent)), ())


def _closest(shapes: Shapes, files: Workspace) -> tuple[Shape, Findings]:
    """Return the shape with the fewest edits that find nothing; of several, one whose files the release has."""

    def distance(findings: Findings) -> tuple[int, int]:
        lost = [edit.file for edit, finding in findings if finding.found is Found.LOST]
        return len(lost), sum(files.original(file) is None for file in lost)

    return min(shapes, key=lambda pair: distance(pair[1]))


def _merged(verdict: PartVerdict, merged: Answer, ready: Shapes, upstream: tuple[str, ...]) -> PartVerdict:
    """Return the verdict for code that upstream changed, drifted if a shape still matches the code before."""
    undone = [shape.name for shape, findings in ready if any(f.found is Found.BEFORE for f in _telling(findings))]
    if undone:
        proof = merged.reason or "one shape matches the overlay's result"
        cause = f"it seems merged upstream ({proof}), yet the code still matches the {undone[0]} layout"
        return replace(verdict, because=cause, problems=(Problem("drifted", verdict.files[0], cause),))
    links, numbers = ", ".join(upstream), ", ".join(f"#{link.rpartition('#')[2]}" for link in upstream)
    reason = f"merged upstream{links and f' ({links})'}: {merged.reason}"
    if not merged.holds:  # the code may be the release's own, or an edit made by hand
        reason = f"already there{links and f', as by {links}'}: the code equals the overlay's result, without its marks"
    return replace(verdict, state=State.MERGED, because=reason, brief=numbers)


def _drifted(
    verdict: PartVerdict, closest: tuple[Shape, Findings], when: dict[str, Answer], unsure: Sequence[Answer]
) -> PartVerdict:
    """Return the verdict with what the closest shape expected and what stands there instead."""
    shape, findings = closest
    problems = [Problem("drifted", e.file, str(f.because), e.scope) for e, f in findings if f.found is Found.LOST]
    if problems and len(when) > 1:  # several shapes may be as close, and each expects other code
        which = f"expected as in the {shape.name} layout, one of {len(when)} that the overlay knows"
        problems[0] = replace(problems[0], hint=which)
    if not problems:
        cause = f"does not match the {shape.name} layout: {when[shape.name].reason}"
        problems = [Problem("drifted", verdict.files[0], cause)]
    doubts = [answer for answer in unsure if answer.holds is None and answer.because]
    problems += [Problem("drifted", answer.file or verdict.files[0], answer.because) for answer in doubts]
    problems = list(dict.fromkeys(problems))
    because = f"{problems[0].where}: {problems[0].cause}" + (f" (and {n} more)" if (n := len(problems) - 1) else "")
    return replace(verdict, because=because, problems=tuple(problems))

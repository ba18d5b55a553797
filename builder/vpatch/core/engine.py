"""From the bytes of a tree to verdicts, and to the new bytes of every file that changes. Nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from vpatch.core.judge import Judgement, blaming, find, judge
from vpatch.core.landing import check
from vpatch.core.overlay import Catalogued
from vpatch.core.select import inside
from vpatch.core.verdict import Changeset, Finding, Found, PartVerdict, State, Verdict
from vpatch.core.workspace import Parsed, Workspace
from vpatch.errors import Problem

Read = Callable[[str], bytes | None]


@dataclass(frozen=True)
class _Claim:
    overlay: str
    part: str
    file: str
    scope: str
    finding: Finding


def status(
    read: Read, overlays: Sequence[Catalogued], parsed: Parsed | None = None, among: Collection[Catalogued] = ()
) -> tuple[Verdict, ...]:
    """Say what a tree is to each overlay, in the order of their ids.

    Args:
        read: gives the bytes of a file of the tree, None where there is no such file.
        overlays: the selected ones; only these can be in conflict with each other.
        parsed: syntax trees of earlier calls, to be used and added to.
        among: the overlays that other calls with the same `parsed` select. A syntax tree is shared only where the same
            code was looked at, and so these calls must name the same ones.
    """
    files = Workspace(read, _reach([*overlays, *among]), parsed)
    return tuple(judgement.verdict for judgement in _judge(files, overlays))


def plan(
    read: Read, overlays: Sequence[Catalogued], parsed: Parsed | None = None, among: Collection[Catalogued] = ()
) -> Changeset:
    """Compute the whole change that brings the selected overlays onto a tree.

    If any of them is `drifted` or in `conflict`, nothing changes, and the changeset carries every problem. The
    arguments are those of `status`.

    Raises:
        RuntimeError: an edit broke its word (a bug of the edit or of its overlay): a postcondition does not hold on the
            result as it is parsed again.
        Failure: an edit or a predicate raised something.
    """
    parsed = {} if parsed is None else parsed
    files = Workspace(read, _reach([*overlays, *among]), parsed)
    before = tuple(judgement.verdict for judgement in _judge(files, overlays))
    problems = tuple(dict.fromkeys(p for v in before for p in v.problems))
    if problems:
        return Changeset(before, before, {}, problems)
    changes = files.changes()
    after = before if not changes else status(_overlaid(read, changes), overlays, parsed, among)
    broken = tuple(problem for old, new in zip(before, after, strict=True) for problem in _broken(old, new))
    if not broken:
        return Changeset(before, after, changes, ())
    if sum(verdict.state is State.PENDING for verdict in before) > 1:
        for item in overlays:
            plan(read, [item], parsed, among)  # raises where it is one overlay's own fault
        return Changeset(before, before, {}, broken)
    raise RuntimeError("\n".join(map(str, broken)))


def named(overlays: Collection[Catalogued]) -> tuple[str, ...]:
    """Give the files that the overlays look at, or may make."""
    made = (file for item in overlays for part in item.overlay.parts for file in part.files)
    return tuple(dict.fromkeys((*_reach(overlays), *made)))


def _reach(overlays: Collection[Catalogued]) -> dict[str, frozenset[str]]:
    """Give, for every file that the overlays name, the code that they look at."""
    found: dict[str, set[str]] = {}
    for part in (part for item in overlays for part in item.overlay.parts):
        edits = (edit.reach for shape in part.shapes for edit in shape.edits)
        asked = (p.reach for p in (part.merged, part.absent, *(shape.when for shape in part.shapes)) if p)
        for file, scope in (where for reach in (*edits, *asked) for where in reach):
            found.setdefault(file, set()).update({scope} if scope is not None else ())
    return {file: frozenset(scopes) for file, scopes in found.items()}


def _broken(old: Verdict, new: Verdict) -> Iterator[Problem]:
    """Give the parts that the edits did not bring where they should be."""
    for was, part in zip(old.parts, new.parts, strict=True):
        expected = State.APPLIED if was.state is State.PENDING else was.state
        if part.state is not expected:
            cause = f"{part.name} is {part.state} once the edits are made, not {expected}: {part.because}"
            yield Problem("conflict", new.id, cause)


def _overlaid(read: Read, changes: Mapping[str, bytes]) -> Read:
    return lambda file: changes[file] if file in changes else read(file)


def _judge(files: Workspace, overlays: Collection[Catalogued]) -> list[Judgement]:
    """Judge the overlays, and then, with every pending one applied to `files`, the code where it landed."""
    judged = [judge(item, files) for item in sorted(overlays, key=lambda item: item.id)]
    clashes: dict[tuple[str, str], list[Problem]] = {}
    for one, other in combinations([claim for j in judged for claim in _claims(j)], 2):
        if one.overlay != other.overlay and one.file == other.file and _clash(one.finding, other.finding):
            for mine, theirs in ((one, other), (other, one)):
                cause = f"{mine.overlay} and {theirs.overlay} change the same code"
                problem = Problem("conflict", mine.file, cause, mine.scope)
                clashes.setdefault((mine.overlay, mine.part), []).append(problem)
    judged = [_with_problems(j, clashes, State.CONFLICT) for j in judged] if clashes else judged
    for judgement in judged:
        if judgement.verdict.state is State.PENDING:
            _apply(judgement, files)
    wrong: dict[tuple[str, str], list[Problem]] = {}
    noted: dict[tuple[str, str], list[str]] = {}
    for judgement in judged:
        found = dict(_landed(judgement, files))
        opened = check.opened([pair for findings in found.values() for pair in findings], files)
        for part, findings in found.items():
            wrong[judgement.verdict.id, part] = check.problems(findings, opened)
            noted[judgement.verdict.id, part] = check.notes(findings, opened)
    judged = [_with_problems(j, wrong, State.DRIFTED) for j in judged] if any(wrong.values()) else judged
    return [_with_notes(j, noted) for j in judged] if any(noted.values()) else judged


def _landed(judgement: Judgement, files: Workspace) -> Iterator[tuple[str, check.Findings]]:
    """Yield the parts that are applied by now, each with what its edits find."""
    name, states = judgement.verdict.id, {State.APPLIED}
    if judgement.verdict.state is State.PENDING:
        states.add(State.PENDING)
    for part in judgement.parts:
        if part.verdict.state in states:
            yield part.verdict.name, [(edit, find(edit, files, name)) for edit, _ in part.findings]


def _claims(judgement: Judgement) -> Iterator[_Claim]:
    for part in judgement.parts:
        for edit, finding in part.findings:
            yield _Claim(judgement.verdict.id, part.verdict.name, edit.file, edit.scope, finding)


def _clash(one: Finding, other: Finding) -> bool:
    """Tell whether two edits want the same code, or the same name for different things."""
    if any(inside(a, b) or inside(b, a) for a in one.regions for b in other.regions):
        return True
    return any(a == b and what != other_what for a, what in one.binds for b, other_what in other.binds)


def _with_problems(judgement: Judgement, problems: Mapping[tuple[str, str], list[Problem]], state: State) -> Judgement:
    """Put the parts that have problems into a state."""

    def told(part: PartVerdict) -> PartVerdict:
        found = tuple(dict.fromkeys(problems.get((judgement.verdict.id, part.name), ())))
        if not found:
            return part
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        because = found[0].cause if state is State.CONFLICT else f"{found[0].where}: {found[0].cause}{more}"
        return replace(part, state=state, because=because, problems=(*part.problems, *found))

    return replace(judgement, verdict=replace(judgement.verdict, parts=tuple(map(told, judgement.verdict.parts))))


def _with_notes(judgement: Judgement, notes: Mapping[tuple[str, str], list[str]]) -> Judgement:
    parts = (replace(p, notes=tuple(notes.get((judgement.verdict.id, p.name), ()))) for p in judgement.verdict.parts)
    return replace(judgement, verdict=replace(judgement.verdict, parts=tuple(parts)))


def _apply(judgement: Judgement, files: Workspace) -> None:
    for part in judgement.parts:
        if part.verdict.state is State.PENDING:
            for edit, _ in part.findings:
                if find(edit, files, judgement.verdict.id).found is Found.BEFORE:
                    with blaming(judgement.verdict.id, edit, edit.file, edit.scope):
                        edit.apply(files, judgement.verdict.id)

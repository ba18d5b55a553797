"""The engine: from the bytes of a tree to verdicts, and to the new bytes of files. It writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from vpatch.core.calls import Calls
from vpatch.core.judge import Judgement, blaming, find, judge
from vpatch.core.landing import check
from vpatch.core.landing.fit import Findings, fit
from vpatch.core.overlay import Catalogued, Edit
from vpatch.core.parsed import ParsedModules
from vpatch.core.syntax import inside
from vpatch.core.verdict import Changeset, EditFinding, Found, PartChange, PartVerdict, State, Verdict
from vpatch.core.workspace import Workspace
from vpatch.errors import Problem, raise_all

Read = Callable[[str], bytes | None]
"""Returns the bytes of a file of a tree by its POSIX path, None if the tree lacks it.

A path that ends with a slash names a folder, whose bytes are its listing, see `vpatch.core.listing`.
"""

_Part = tuple[str, str]
"""The ids of an overlay and of a part of it."""


@dataclass(frozen=True)
class _Landed:
    """Code that was checked where it landed, without a problem."""

    before: object  # its files before the edits
    notes: dict[str, tuple[str, ...]]  # by part
    read: Mapping[str, bytes | None]  # other files that the check read, such as companions that the code imports


class Engine:
    """Judges trees by a fixed set of overlays, and parses equal bytes of a file once.

    Args:
        overlays: the overlays.
        once: each overlay is asked about once. Then syntax trees, which take most of the memory, are freed once the
            answers are there; what is asked for again all the same is parsed again.
    """

    def __init__(self, overlays: Iterable[Catalogued], *, once: bool = False) -> None:
        self.overlays = tuple(sorted(overlays, key=lambda item: item.id))
        self._landed: dict[object, _Landed] = {}
        self._cache = ParsedModules()
        self._once = once
        self._unasked = {item.id: item for item in self.overlays}

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The files that the overlays read, change or add, and the folders that they list."""
        edited = (file for item in self.overlays for file in item.overlay.files)
        named = (
            file for item in self.overlays for file in (*_named_by(item), *(item.calls.files if item.calls else ()))
        )
        return tuple(dict.fromkeys((*edited, *named)))

    def status(
        self, read: Read, overlays: Iterable[Catalogued] | None = None, beside: Iterable[Catalogued] = ()
    ) -> tuple[Verdict, ...]:
        """Judge a tree by some of the engine's overlays, by default all, in the order of their ids.

        Only overlays that are judged together can be in conflict, and such as displace code that those of `beside`,
        which are applied, are found by.

        Raises:
            Failure: an edit or a predicate raised an exception.
        """
        return self._status(*self._asked(read, overlays), beside)

    def plan(
        self, read: Read, overlays: Iterable[Catalogued] | None = None, beside: Iterable[Catalogued] = ()
    ) -> Changeset:
        """Compute the whole change that applies overlays, by default all, to a tree. `beside` is as of `status`.

        If any of them is `drifted` or in `conflict`, nothing changes, and the changeset has every problem.

        Raises:
            RuntimeError: a postcondition does not hold in the parsed result, which is a bug in an overlay or an edit.
            Failure: an edit or a predicate raised an exception.
        """
        files, chosen = self._asked(read, overlays)
        before = self._status(files, chosen, beside)
        problems = tuple(dict.fromkeys(p for v in before for p in v.problems))
        if problems:
            return Changeset(before, before, {}, problems)
        changes = files.changes()
        after = self.status(lambda f: changes[f] if f in changes else read(f), chosen) if changes else before
        broken = tuple(problem for old, new in zip(before, after, strict=True) for problem in _broken(old, new))
        if not broken:
            return Changeset(before, after, changes, ())
        if sum(verdict.state is State.PENDING for verdict in before) > 1:
            for item in chosen:
                self.plan(read, [item])  # raises if one overlay alone is at fault
            return Changeset(before, before, {}, broken)
        raise RuntimeError("\n".join(map(str, broken)))

    def parts(
        self, read: Read, item: Catalogued, originals: Mapping[str, bytes | None] | None = None
    ) -> tuple[PartChange, ...]:
        """Compute what each part of an overlay changes on its own, in a tree that no other part has changed.

        Args:
            read: reads the tree.
            item: the overlay.
            originals: the bytes of files from before vpatch, None for one that it added. Parts that are applied are
                compared with these.

        Raises:
            Failure: an edit or a predicate raised an exception.
        """
        (verdict,) = self.status(read, [item])
        judged = judge(item, Workspace(read, self._cache))
        found = [
            PartChange(part, self._made(replace(judged, parts=(one,)), read) if part.state is State.PENDING else {})
            for part, one in zip(verdict.parts, judged.parts, strict=True)
        ]
        if originals and any(part.state is State.APPLIED for part in verdict.parts):
            before = self.parts(lambda file: originals[file] if file in originals else read(file), item)
            for at, part in enumerate(verdict.parts):
                if part.state is State.APPLIED:
                    found[at] = PartChange(part, before[at].files)
        return tuple(found)

    def _made(self, judgement: Judgement, read: Read) -> Mapping[str, tuple[bytes | None, bytes]]:
        """Make the changes of pending parts; return the files before and after."""
        files = Workspace(read, self._cache)
        _apply(judgement, files)
        return {file: (files.original(file), new) for file, new in files.changes().items()}

    def landed(self, read: Read) -> tuple[Workspace, dict[tuple[str, str, str], Findings]]:
        """Apply the pending overlays in memory; return the files, and the findings by overlay, part and shape.

        Where their code lands is not checked.

        Raises:
            Failure: an overlay is drifted or in conflict, or an edit or a predicate raised an exception.
        """
        files = Workspace(read, self._cache)
        judged = self._edited(files, self.overlays)
        raise_all([problem for one in judged for problem in one.verdict.problems])
        found = {}
        for one in judged:
            shapes = _shapes(one)
            found.update({(one.verdict.id, name, shapes[name]): pairs for name, pairs in _landed(one, files)})
        return files, found

    def fitting(self, read: Read, before: Iterable[Verdict], without: Collection[str] = ()) -> tuple[str, ...]:
        """Return the ids of pending overlays that can be applied if the others are left out.

        Args:
            read: reads the tree.
            before: the verdicts on it.
            without: ids of more overlays to leave out.

        Returns:
            The ids; () if no overlay is left out, or if nothing remains to be done without these.
        """
        found = tuple(before)
        wrong = {verdict.id for verdict in found if verdict.problems} | {*without}
        pending = tuple(v.id for v in found if v.state is State.PENDING and v.id not in wrong)
        rest = [item for item in self.overlays if item.id in {verdict.id for verdict in found} - wrong]
        return pending if wrong and pending and not self.plan(read, rest).problems else ()

    def forget(self, but: Collection[bytes] = ()) -> None:
        """Drop all parsed modules, except those with these bytes."""
        self._cache.forget(but)
        self._landed.clear()

    def _asked(self, read: Read, overlays: Iterable[Catalogued] | None) -> tuple[Workspace, Sequence[Catalogued]]:
        """Return the files of a tree, and the overlays in the order of their ids."""
        chosen = self.overlays if overlays is None else sorted(overlays, key=lambda item: item.id)
        for item in chosen:
            self._unasked.pop(item.id, None)
        kept = {file for item in self._unasked.values() for file in item.overlay.files}
        return Workspace(read, self._cache, kept if self._once else None), chosen

    def _status(
        self, files: Workspace, chosen: Sequence[Catalogued], beside: Iterable[Catalogued]
    ) -> tuple[Verdict, ...]:
        """Judge the overlays, apply the pending ones to `files`, and check their code there."""
        judged = self._edited(files, chosen, beside)
        items = {item.id: item for item in chosen}
        wrong: dict[_Part, list[Problem]] = {}
        notes: dict[_Part, tuple[str, ...]] = {}
        for one in judged:
            problems, remarks = self._landing(one, items[one.verdict.id].calls, files)
            accepted = {part.name: part.accepted for part in items[one.verdict.id].overlay.parts}
            for part, found in problems.items():
                wrong[one.verdict.id, part] = [problem for problem in found if problem.remark not in accepted[part]]
            notes |= {(one.verdict.id, part): found for part, found in remarks.items()}
        verdicts = [_with_problems(one, wrong, State.DRIFTED).verdict for one in judged]
        return tuple(
            replace(one, parts=tuple(replace(part, notes=notes.get((one.id, part.name), ())) for part in one.parts))
            for one in verdicts
        )

    def _edited(
        self, files: Workspace, overlays: Sequence[Catalogued], beside: Iterable[Catalogued] = ()
    ) -> list[Judgement]:
        """Judge the overlays, and apply the pending ones to `files`."""
        judged = list[Judgement]()
        changed = set[str]()
        for number, item in enumerate(overlays, 1):
            judged.append(judge(item, files))
            changed |= {edit.file for part in judged[-1].parts for edit, _ in part.findings}
            # Inserted code is checked in the files that have it, and seldom looks into others.
            files.free(changed.union(*map(_named_by, overlays[number:])))
        conflicts = _conflicts(judged, [judge(item, files) for item in beside])
        judged = [_with_problems(one, conflicts, State.CONFLICT) for one in judged]
        for one in judged:
            if one.verdict.state is State.PENDING:
                _apply(one, files)
        return judged

    def _landing(
        self, judgement: Judgement, calls: Calls | None, files: Workspace
    ) -> tuple[dict[str, list[Problem]], dict[str, tuple[str, ...]]]:
        """Return the problems and notes on inserted code, by part. Equal code is checked once."""
        found = dict(_landed(judgement, files))
        pairs = [pair for findings in found.values() for pair in findings]
        called = calls.files if calls and found else ()
        names = tuple(dict.fromkeys((*(edit.file for edit, _ in pairs), *called)))
        now, before = tuple(map(files.read, names)), tuple(map(files.original, names))
        key = (tuple(pairs), now)
        known = self._landed.get(key)
        # What the code around lost is seen against the file before; there is nothing to lose where nothing changes.
        if known and before in (now, known.before) and all(files.read(f) == data for f, data in known.read.items()):
            return {}, known.notes
        opened = check.opened(pairs, files)
        shapes = _shapes(judgement)
        with files.noting() as read:
            with blaming(judgement.verdict.id, calls):
                fits = fit(calls, {part: (shapes[part], own) for part, own in found.items()}, files)
            problems = {part: [*check.problems(own, opened, files), *fits[part][0]] for part, own in found.items()}
        told: set[str] = set()  # parts that share a companion would say the same
        notes = {}
        for part, own in found.items():
            notes[part] = tuple(one for one in (*check.notes(own, opened), *fits[part][1]) if one not in told)
            told.update(notes[part])
        if not any(problems.values()):
            self._landed[key] = _Landed(before, notes, {file: files.read(file) for file in read.difference(names)})
        return problems, notes


def _named_by(item: Catalogued) -> tuple[str, ...]:
    """Return the files that the edits and the predicates of an overlay name."""
    found = dict.fromkeys(item.overlay.files)
    for part in item.overlay.parts:
        for asked in filter(None, (part.merged, part.absent, *(shape.when for shape in part.shapes))):
            with blaming(item.id, asked):
                found |= dict.fromkeys(asked.files)
    return tuple(found)


def _broken(old: Verdict, new: Verdict) -> Iterator[Problem]:
    """Yield a problem for each part that the edits left in an unexpected state."""
    for was, part in zip(old.parts, new.parts, strict=True):
        expected = State.APPLIED if was.state is State.PENDING else was.state
        if part.state is not expected:
            cause = f"{part.name} is {part.state} once the edits are made, not {expected}: {part.because}"
            yield Problem("conflict", new.id, cause)


def _conflicts(judged: Sequence[Judgement], beside: Sequence[Judgement]) -> dict[_Part, list[Problem]]:
    """Return the conflicts of each part with parts of other overlays."""
    there = {one.verdict.id for one in beside}
    claims = [
        (one.verdict.id, part.verdict.name, edit, finding)
        for one in (*judged, *beside)
        for part in one.parts
        for edit, finding in part.findings
    ]
    found: dict[_Part, list[Problem]] = {}
    for one, other in combinations(claims, 2):
        clash = _clash if there.isdisjoint((one[0], other[0])) else _displaces
        if one[0] != other[0] and one[2].file == other[2].file and clash(one[3], other[3]):
            for (mine, part, edit, _), (theirs, *_) in ((one, other), (other, one)):
                cause = f"{mine} and {theirs} change the same code"
                found.setdefault((mine, part), []).append(Problem("conflict", edit.file, cause, edit.scope))
    return found


def _clash(one: EditFinding, other: EditFinding) -> bool:
    """Whether two edits change the same code, or bind the same name to different things."""
    pairs = [(one.regions, other.regions)]
    if Found.BEFORE in (one.found, other.found):  # else nothing is left to take away what the other leans on
        pairs += [(one.regions, other.context), (one.context, other.regions)]
    if any(inside(a, b) or inside(b, a) for mine, theirs in pairs for a in mine for b in theirs):
        return True
    return any(a == b and what != other_what for a, what in one.binds for b, other_what in other.binds)


def _displaces(one: EditFinding, other: EditFinding) -> bool:
    """Whether one of two edits is to change what the other, which was made, is found by, and not to build on it."""
    if one.found is Found.AFTER:
        one, other = other, one
    if (one.found, other.found) != (Found.BEFORE, Found.AFTER):
        return False
    if any(inside(a, b) for a in one.context for b in other.regions):
        return False  # there is one order only
    return any(inside(a, b) or inside(b, a) for a in one.regions for b in other.context)


def _apply(judgement: Judgement, files: Workspace) -> None:
    """Make the changes of the pending parts; parts may share an edit."""
    made = set[Edit]()
    for part in judgement.parts:
        for edit, finding in part.findings if part.verdict.state is State.PENDING else ():
            if finding.found is Found.BEFORE and edit not in made:
                made.add(edit)
                with blaming(judgement.verdict.id, edit, edit.file, edit.scope):
                    edit.apply(files, judgement.verdict.id)


def _landed(judgement: Judgement, files: Workspace) -> Iterator[tuple[str, Findings]]:
    """Yield the parts that are applied in `files`, each with the findings of its edits."""
    name, states = judgement.verdict.id, {State.APPLIED}
    if judgement.verdict.state is State.PENDING:
        states.add(State.PENDING)
    for part in judgement.parts:
        if part.verdict.state in states:
            yield part.verdict.name, [(edit, find(edit, files, name)) for edit, _ in part.findings]


def _shapes(judgement: Judgement) -> dict[str, str]:
    """Return the name of each part's shape."""
    return {part.verdict.name: part.verdict.shape or "" for part in judgement.parts}


def _with_problems(judgement: Judgement, problems: Mapping[_Part, list[Problem]], state: State) -> Judgement:
    def revised(part: PartVerdict) -> PartVerdict:
        found = tuple(dict.fromkeys(problems.get((judgement.verdict.id, part.name), ())))
        if not found:
            return part
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        because = found[0].cause if state is State.CONFLICT else f"{found[0].where}: {found[0].cause}{more}"
        return replace(part, state=state, because=because, problems=(*part.problems, *found))

    verdict = replace(judgement.verdict, parts=tuple(map(revised, judgement.verdict.parts)))
    return replace(judgement, verdict=verdict)

"""Drafts of a patch file for a vLLM that it does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from vpatch.core.edits.address import Malformed, hunks
from vpatch.core.engine import Engine
from vpatch.core.judge import find
from vpatch.core.marks import without_marks
from vpatch.core.overlay import Catalogued
from vpatch.core.patch_file import ModuleChange, PatchFile, overlay_of
from vpatch.core.verdict import Found, State
from vpatch.core.workspace import Workspace
from vpatch.porting.bases import PatchBase, line_feeds, text_of
from vpatch.porting.merging import Conflict, merged
from vpatch.porting.moved import new_place
from vpatch.porting.program import text_in
from vpatch.porting.proof import ModuleVersions, Unproven, patch_file
from vpatch.porting.second_look import Shapes, came, keep, look

BESIDE = "the hunks with one neighbor"
BY_HAND = "your modules"
_SIDE = "upstream changed what is next to the new lines: read whether they stand on its right side"
_UNSEEN = "whether this is the same place as there, was not looked at"
Way = Callable[[], Iterable[ModuleVersions]]
_SECTION = re.compile(r"^(?=@@)", re.MULTILINE)


class Stopped(ValueError):
    """A way to a draft that leads to none; the message is one sentence.

    Attributes:
        conflict: what a three-way merge could not decide.
    """

    def __init__(self, message: str, conflict: Conflict | None = None) -> None:
        super().__init__(message)
        self.conflict = conflict


@dataclass(frozen=True)
class Draft:
    """What came of the ways to a patch file for another vLLM.

    Attributes:
        path: the last module that the patch file changes; of a part, the only one.
        place: where the target has it.
        stopped: why each way before it led to none.
        patch: the patch file, proven there; None without one.
        how: how it was made, in words.
        notes: what it leaves as it was, and where code went.
        parts: what came of each module of several.
    """

    path: str
    place: str
    stopped: Sequence[Stopped]
    patch: PatchFile | None = None
    how: str = ""
    notes: Sequence[str] = ()
    parts: Sequence[Draft] = ()

    @property
    def undone(self) -> Sequence[Draft]:
        """The modules without a draft."""
        return [one for one in self.parts or (self,) if not one.patch]

    @property
    def conflicts(self) -> Sequence[Conflict]:
        """What three-way merges could not decide."""
        return [why.conflict for one in self.undone for why in one.stopped if why.conflict]


def draft(
    name: str,
    patch: PatchFile,
    base: PatchBase | None,
    target: PatchBase,
    others: Shapes = (),
    mine: Mapping[str, str] | None = None,
) -> Draft:
    """Draft a patch file for another vLLM.

    The ways are the definitions' new place, a three-way merge of the lines, and one neighbor of a change instead of
    both; each module takes the first one that leads to a draft. What comes of them is proven on the target as `vpatch
    import` proves a patch on its base; in addition, the check of inserted code may say nothing there that it did not
    say on the base.

    Args:
        name: the id of the overlay.
        patch: the patch file, or that of its shapes that is the nearest to the target.
        base: the vLLM that it was made for; None if it cannot be read.
        target: the vLLM that it is to fit.
        others: the other shapes, each with its vLLM; there, and on the base, a draft may change nothing.
        mine: the modules as the author changed them for the target: the only way, if they are given.

    Raises:
        Failure: a module cannot be read.
    """
    places = {one.path: place for one in patch.changes if (place := new_place(one, target, base))}
    new, old = ([one for one in patch.changes if _is_new(one) is wanted] for wanted in (True, False))
    patch = replace(patch, changes=(*new, *old))
    whole = _Work(name, patch, _moved(patch, places), base, target, others)
    if mine is not None:
        return whole.proven({BY_HAND: lambda: _by_hand(name, mine, target)}, None)
    alone = [replace(patch, changes=(*new, one)) for one in old]
    works = [_Work(name, one, _moved(one, places), base, target) for one in alone]
    works = [one for one in works if len(works) > 1 and one.state is not State.MERGED]
    if not works:
        return whole.proven(whole.ways, whole.moved.accepted)
    parts = [one.proven(one.ways, None) for one in works]
    if undone := [one for one in parts if not one.patch]:
        return replace(undone[0], stopped=[why for one in undone for why in one.stopped], parts=parts)
    joined = _joined(whole.moved, [one.patch for one in parts if one.patch])
    how = ", ".join(dict.fromkeys(one.how for one in parts))
    return replace(whole.proven({how: lambda: _by_hunks(name, joined, target)}, whole.moved.accepted), parts=parts)


@dataclass(frozen=True)
class _Work:
    """A patch file, the same with the paths that its modules have in the target (`moved`), and what `draft` got."""

    name: str
    patch: PatchFile
    moved: PatchFile
    base: PatchBase | None
    target: PatchBase
    others: Shapes = ()

    @cached_property
    def _files(self) -> Mapping[PatchBase, Workspace]:
        return {one: Workspace(one.read) for one in (self.base, self.target) if one}

    @cached_property
    def state(self) -> State:
        """The state that the patch file has on the target."""
        return Engine([Catalogued(self.name, overlay_of(self.moved), "")]).status(self.target.read)[0].state

    @property
    def ways(self) -> Mapping[str, Way]:
        """The ways to a draft, the surest first."""
        moved = self.moved.changes != self.patch.changes
        as_is = "the hunks in the definitions' new place" if moved else "the hunks as they are"
        in_place: Mapping[str, Way] = {as_is: lambda: _by_hunks(self.name, self.moved, self.target)}
        return {
            **(in_place if moved or self.state is State.PENDING else {}),
            "a three-way merge of the lines": self._by_lines,
            BESIDE: self._beside,
        }

    def proven(self, ways: Mapping[str, Way], accepted: Collection[str] | None) -> Draft:
        """Return the first draft that can be proven; `accepted` is as of `patch_file`."""
        patch, target, stopped = self.patch, self.target, list[Stopped]()
        pairs = [(old.path, new.path) for old, new in zip(patch.changes, self.moved.changes, strict=True)]
        notes = [f"{path}: moved to {place}" for path, place in pairs if path != place]
        notes += [] if self.base else [f"vLLM {patch.head['Base']} cannot be read: {_UNSEEN}"]
        for how, way in ways.items():
            try:
                changes = tuple(change for change in way() if change.after != change.before)
                if not changes:
                    raise Stopped(f"it changes nothing: all of its lines are in vLLM {target.version}")
                made, left = patch_file(self.name, _head(patch, target), changes, target.read, accepted=accepted)
                if self.base:
                    left += tuple(look(made, patch, self.moved, self.base, target, own=how == BY_HAND))
                if shapes := (*([(patch, self.base)] if self.base else []), *self.others):
                    keep(self.name, made, shapes)
            except (Stopped, Unproven) as error:
                stopped += [Stopped(f"{how}: {error}", getattr(error, "conflict", None))] if str(error) else []
            else:
                notes += [*left, *([_SIDE] if BESIDE in how else [])]
                return Draft(*pairs[-1], stopped, made, how, notes)
        return Draft(*pairs[-1], stopped)

    def _beside(self) -> Iterator[ModuleVersions]:
        """Yield the modules with hunks beside one neighbor, where they have no place with both.

        On the base, a hunk has to have the same place beside one. An insertion that upstream may have made, too, stays.
        """
        changes = []
        for change, to in zip(self.patch.changes, self.moved.changes, strict=True):
            sections = [] if change.is_whole else filter(None, _SECTION.split(change.text))
            forms = [self._form(change.path, to.path, section) for section in sections]
            changes.append(to if change.is_whole else replace(to, text="".join(forms)))
        loose = replace(self.moved, changes=tuple(changes))
        if loose == self.moved:
            raise Stopped("")  # there is no other form, and so nothing to tell
        yield from _by_hunks(self.name, loose, self.target)

    def _form(self, before: str, path: str, section: str) -> str:
        """Return the form in which a hunk, which was in the module `before`, has its place in the target."""
        added = ModuleChange(path, new=False, text=section)
        inserts = not re.search("^-", section, re.MULTILINE)
        if inserts and (self.base is None or came(added, before, self.base, self.target)):
            return section

        def places(base: PatchBase, file: str, form: str) -> list[tuple[Found, object]]:
            try:
                found = [find(edit, self._files[base], self.name) for edit in hunks(file, "", (), form)]
            except Malformed:
                return []
            return [(one.found, one.regions) for one in found]

        for form in _forms(section):
            now, base = places(self.target, path, form), self.base
            if not now or any(found is Found.LOST for found, _ in now):
                continue
            if form == section or base is None or places(base, before, form) == places(base, before, section):
                return form
        return section

    def _by_lines(self) -> Iterator[ModuleVersions]:
        """Yield the modules before and after a three-way merge; raises `Stopped` where it has conflicts."""
        base, target = self.base, self.target
        if base is None:
            raise Stopped(f"vLLM {self.patch.head['Base']}, which the patch was made for, cannot be read")
        made = Engine([Catalogued(self.name, overlay_of(self.patch), "")]).plan(base.read)
        if made.problems or made.before[0].state is not State.PENDING:
            raise Stopped(f"on vLLM {base.name} it is {made.before[0].state}")
        for change, to in zip(_versions(self.patch, made.files, base), self.moved.changes, strict=True):
            path, now = to.path, _text(target, to.path)
            if change.before is None:
                if now not in (None, change.after):
                    raise Stopped(f"{path} is there already")
                yield ModuleVersions(path, now, change.after)
            elif now is None:
                raise Stopped(f"{path} is not there")
            else:
                found = merged(path, change.before, change.after or "", now)
                if isinstance(found, Conflict):
                    where = f"line {found.line} of vLLM {base.version}, line {found.other} of vLLM {target.version}"
                    raise Stopped(f"{path}: both sides changed {where}", found)
                yield ModuleVersions(path, now, found)


def _joined(patch: PatchFile, drafts: Iterable[PatchFile]) -> PatchFile:
    """Return a patch file with the changes of drafts in place of its own."""
    changes: dict[str, ModuleChange] = {}
    for one in (one for each in drafts for one in each.changes):
        known = changes.get(one.path)
        changes[one.path] = one if known is None or one.is_whole else replace(one, text=known.text + one.text)
    return replace(patch, changes=tuple(changes.values()))


def _is_new(change: ModuleChange) -> bool:
    return change.new and not change.is_data


def _by_hand(name: str, mine: Mapping[str, str], target: PatchBase) -> Iterator[ModuleVersions]:
    """Yield the modules as the author changed them; raises `Stopped` for one that is as it was."""
    changes = [ModuleVersions(path, _text(target, path), line_feeds(path, after)) for path, after in mine.items()]
    if all(change.before == change.after for change in changes):
        unneeded = f"leave the patch out by `--without {name}`, or `without` in the project's file"
        cause = f"no module there differs from vLLM {target.version}"
        raise Stopped(f"{cause}: change one, or, if that vLLM has nothing left to change, {unneeded}")
    for change in changes:
        if change.before == change.after:
            cause = f"{change.path} is as vLLM {target.version} has it"
            raise Stopped(f"{cause}: change it, or remove it from the folder if it needs no change")
        yield change


def begun(name: str, drafted: Draft, patch: PatchFile, target: PatchBase) -> Mapping[str, str]:
    """Return the modules of a vLLM for which a patch file has to be made by hand, with what could be drafted."""
    new = filter(_is_new, patch.changes)
    texts = {one.path: "".join(f"{line[1:]}\n" for line in one.text.splitlines()) for one in new}
    texts |= {one.place: now for one in drafted.undone if (now := _text(target, one.place)) is not None}
    for made in (one.patch for one in drafted.parts or (drafted,) if one.patch):
        texts |= {change.path: change.after or "" for change in _by_hunks(name, made, target)}
    return texts


def _moved(patch: PatchFile, places: Mapping[str, str]) -> PatchFile:
    """Return a patch file with other paths, also in what was accepted."""
    accepted = patch.head.get("Accepted", "")
    for path, place in places.items():
        accepted = accepted.replace(path, place)
    head = {**patch.head, "Accepted": accepted} if accepted else patch.head
    return PatchFile(head, tuple(replace(one, path=places.get(one.path, one.path)) for one in patch.changes))


def _head(patch: PatchFile, target: PatchBase) -> Mapping[str, str]:
    return {"Subject": patch.head["Subject"], "Base": target.version}


def _by_hunks(name: str, patch: PatchFile, target: PatchBase) -> Iterator[ModuleVersions]:
    """Yield the modules before and after the hunks; raises `Stopped` where they do not fit."""
    made = Engine([Catalogued(name, overlay_of(patch), "")]).plan(target.read)
    before, *_ = made.before
    if made.problems or before.state is not State.PENDING:
        raise Stopped(before.because if before.problems or not made.problems else made.problems[0].cause)
    yield from _versions(patch, made.files, target)


def _versions(patch: PatchFile, files: Mapping[str, bytes], read: PatchBase) -> Iterator[ModuleVersions]:
    for change in patch.changes:
        before = _text(read, change.path)
        data = files.get(change.path)
        if data is not None and change.is_data:
            yield ModuleVersions(change.path, before, text_in(change.path, data))
            continue
        after = before if data is None else line_feeds(change.path, text_in(change.path, without_marks(data)))
        yield ModuleVersions(change.path, before, after.lstrip("\n") if change.new and after else after)


def _text(read: PatchBase, path: str) -> str | None:
    text = text_of(read, path)
    return None if text is None else line_feeds(path, text)


def _forms(section: str) -> Iterator[str]:
    """Yield a hunk, and one that adds something also without the context below or above it."""
    yield section
    address, *lines = section.splitlines(keepends=True)
    changed = [k for k, line in enumerate(lines) if line[0] in "+-"]
    if "+" not in {lines[k][0] for k in changed}:
        return
    for form in (lines[: changed[-1] + 1], lines[changed[0] :]):
        if any(line[0] != "+" for line in form):  # an insertion needs a neighbor
            yield address + "".join(form)

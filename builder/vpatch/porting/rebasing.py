"""Drafts of a patch file for a vLLM that it does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from vpatch.core.edits.address import Malformed, hunks
from vpatch.core.engine import Engine
from vpatch.core.judge import find
from vpatch.core.marks import without_marks
from vpatch.core.overlay import Catalogued
from vpatch.core.patch_file import ModuleChange, PatchFile, overlay_of
from vpatch.core.verdict import EditFinding, Found, State
from vpatch.core.workspace import Workspace
from vpatch.porting.bases import PatchBase, line_feeds, text_of
from vpatch.porting.merging import Conflict, merged
from vpatch.porting.moved import new_place
from vpatch.porting.program import text_in
from vpatch.porting.proof import ModuleVersions, Unproven, patch_file
from vpatch.porting.second_look import Shapes, keep, look

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
    """A patch file for another vLLM, proven there.

    Attributes:
        patch: the patch file.
        how: how it was made, in words.
        notes: what it leaves as it was, and where code went.
    """

    patch: PatchFile
    how: str
    notes: tuple[str, ...]


def draft(
    name: str, patch: PatchFile, base: PatchBase | None, target: PatchBase, others: Shapes = ()
) -> tuple[Draft | None, list[Stopped]]:
    """Return a draft of a patch file for another vLLM, and why each way before it led to none.

    The ways are the definitions' new place, one neighbor of a replacement instead of both, and a three-way merge of the
    lines. What comes of one is proven on the target as `vpatch import` proves a patch on its base; in addition, the
    check of inserted code may say nothing there that it did not say on the base.

    Args:
        name: the id of the overlay.
        patch: the patch file, or that of its shapes that is the nearest to the target.
        base: the vLLM that it was made for; None if it cannot be read.
        target: the vLLM that it is to fit.
        others: the other shapes, each with its vLLM; there, and on the base, a draft may change nothing.

    Raises:
        Failure: a module cannot be read.
    """
    places = {one.path: place for one in patch.changes if (place := new_place(one, target))}
    moved = _moved(patch, places)
    notes = tuple(f"{path} is {place} there" for path, place in places.items())
    in_place = {"the hunks in the definitions' new place": lambda: _by_hunks(name, moved, target)}
    ways: dict[str, Callable[[], Iterable[ModuleVersions]]] = {
        **(in_place if places else {}),
        "the hunks with one neighbor": lambda: _by_hunks(name, _loosened(name, patch, moved, base, target), target),
        "a three-way merge of the lines": lambda: _by_lines(name, patch, base, target, places),
    }
    stopped = []
    for how, way in ways.items():
        try:
            changes = tuple(change for change in way() if change.after != change.before)
            if not changes:
                raise Stopped(f"it changes nothing: all of its lines are in vLLM {target.version}")
            made, left = patch_file(name, _head(patch, target), changes, target.read, accepted=moved.accepted)
            left += tuple(look(made, patch, moved, base, target)) if base else (_unread(patch),)
            if shapes := (*([(patch, base)] if base else []), *others):
                keep(name, made, shapes)
        except (Stopped, Unproven) as error:
            stopped.append(Stopped(f"{how}: {error}", getattr(error, "conflict", None)))
        else:
            return Draft(made, how, (*notes, *left)), stopped
    return None, stopped


def _unread(patch: PatchFile) -> str:
    return f"vLLM {patch.head['Base']} cannot be read: whether this is the same place as there, was not looked at"


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
    if made.problems or made.before[0].state is not State.PENDING:
        raise Stopped(made.before[0].because if made.before[0].problems else made.problems[0].cause)
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


def _loosened(name: str, patch: PatchFile, moved: PatchFile, base: PatchBase | None, target: PatchBase) -> PatchFile:
    """Return a patch file whose replacements stand beside one neighbor, where they have no place with both.

    On the base, a replacement has to have the same place beside one.
    """
    here, there = Workspace(target.read), Workspace(base.read) if base else None

    def found(path: str, section: str, files: Workspace) -> list[EditFinding]:
        try:
            return [find(edit, files, name) for edit in hunks(path, "", (), section)]
        except Malformed:
            return []

    def fits(change: ModuleChange, path: str, section: str, form: str) -> bool:
        now = found(path, form, here)
        if not now or any(one.found is Found.LOST for one in now):
            return False
        if form == section or there is None:
            return True
        was, wanted = (found(change.path, text, there) for text in (form, section))
        return [(one.found, one.regions) for one in was] == [(one.found, one.regions) for one in wanted]

    def loosened(change: ModuleChange, path: str) -> ModuleChange:
        if change.is_whole:
            return replace(change, path=path)
        sections = filter(None, _SECTION.split(change.text))
        forms = (next((one for one in _forms(text) if fits(change, path, text, one)), text) for text in sections)
        return replace(change, path=path, text="".join(forms))

    changes = (loosened(one, to.path) for one, to in zip(patch.changes, moved.changes, strict=True))
    loose = replace(moved, changes=tuple(changes))
    if loose == moved:
        raise Stopped("no replacement has its place beside one neighbor")
    return loose


def _forms(section: str) -> Iterator[str]:
    """Yield a hunk, and a replacement also without the context above or below it."""
    yield section
    address, *lines = section.splitlines(keepends=True)
    changed = [k for k, line in enumerate(lines) if line[0] in "+-"]
    if {lines[k][0] for k in changed} == {"+", "-"}:
        yield address + "".join(lines[changed[0] :])
        yield address + "".join(lines[: changed[-1] + 1])


def _by_lines(
    name: str, patch: PatchFile, base: PatchBase | None, target: PatchBase, places: Mapping[str, str]
) -> Iterator[ModuleVersions]:
    """Yield the modules before and after a three-way merge; raises `Stopped` where it has conflicts."""
    if base is None:
        raise Stopped(f"vLLM {patch.head['Base']}, which the patch was made for, cannot be read")
    made = Engine([Catalogued(name, overlay_of(patch), "")]).plan(base.read)
    if made.problems or made.before[0].state is not State.PENDING:
        raise Stopped(f"on vLLM {base.name} it is {made.before[0].state}")
    for change in _versions(patch, made.files, base):
        path = places.get(change.path, change.path)
        now = _text(target, path)
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

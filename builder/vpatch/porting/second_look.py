"""A second look at a draft: whether it is where the patch was, and what a reader would overlook in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from vpatch.core.edits.address import hunks
from vpatch.core.edits.patch import Patch
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued, Edit
from vpatch.core.patch_file import ModuleChange, PatchFile, overlay_of
from vpatch.porting.bases import PatchBase, text_of
from vpatch.porting.moved import defined
from vpatch.porting.proof import Unproven

Shapes = Sequence[tuple[PatchFile, PatchBase]]
"""Shapes of a patch file, each with the vLLM that it is for."""


def look(
    made: PatchFile, patch: PatchFile, moved: PatchFile, base: PatchBase, target: PatchBase, *, own: bool = False
) -> list[str]:
    """Return what a reader should know of a draft.

    Args:
        made: the draft.
        patch: the shape that it was made from.
        moved: the same, with the paths that its modules have in the target.
        base: the vLLM of that shape.
        target: the vLLM of the draft.
        own: the author made it, and may change what he likes.

    Raises:
        Unproven: it changes a definition that the patch does not change.
    """
    before = {to.path: change.path for change, to in zip(patch.changes, moved.changes, strict=True)}
    old, new = _scopes(moved), _scopes(made)
    named = {(edit.file, edit.scope) for edit in _edits(moved)}
    notes = []
    for path, scope in sorted(new):
        if _among((path, scope), named):
            continue
        if not own and scope in (defined(base, before[path]) or ()):
            raise Unproven(f"{path}: it would change `{scope}`, which the patch does not change")
        notes.append(f"{path}: it changes `{scope}`, which the patch does not name")
    for path, scope in sorted(one for one in old if not _among(one, new)):
        place = f"in `{scope}`" if scope else "at the top of the module"
        notes.append(
            f"{path}: it changes nothing {place}, as the patch does: read whether vLLM {target.version} has it"
        )
    notes += _blocks(moved, made)
    kept = {change.path for change in made.changes}
    whole = [one.path for one in moved.changes if one.path not in kept and not _scopes(PatchFile({}, (one,)))]
    notes += [f"{path}: left out: vLLM {target.version} has it" for path in whole]
    return [*notes, *_there(made, before, base, target)]


def keep(name: str, made: PatchFile, shapes: Shapes) -> None:
    """Check that where a shape fits, the patch file makes the same program with a further one.

    Raises:
        Unproven: it makes another one.
    """
    first, *more = (patch for patch, _ in shapes)
    overlays = [overlay_of(first, *more), overlay_of(first, *more, made)]
    for patch, base in shapes:
        if patch.head["Base"] == made.head["Base"]:
            continue
        now, then = (Engine([Catalogued(name, overlay, "")]).plan(base.read).files for overlay in overlays)
        if now != then:
            raise Unproven(f"it fits vLLM {base.version}, too, and makes another program there than the shape for that")


def _place(scope: str) -> str:
    return f"`{scope}`" if scope else "the module itself"


def _edits(patch: PatchFile) -> Iterator[Edit]:
    for change in patch.changes:
        if not change.is_whole:
            yield from hunks(change.path, "", (), change.text)


def _scopes(patch: PatchFile) -> set[tuple[str, str]]:
    """Return the definitions whose code is changed, "" for the module's own; to get one more does not count."""
    return {(edit.file, edit.scope) for edit in _edits(patch) if isinstance(edit, Patch)}


def _blocks(moved: PatchFile, made: PatchFile) -> Iterator[str]:
    """Yield the blocks that only the draft changes: below another condition, code may mean something else."""
    patches = ((edit for edit in _edits(one) if isinstance(edit, Patch)) for one in (moved, made))
    old, new = ({(edit.file, edit.scope, header) for edit in edits for header in edit.within} for edits in patches)
    known = _scopes(moved)
    for path, scope, header in sorted(new - old):
        if (path, scope) in known:
            yield f"{path}: in {_place(scope)}, it changes the block `{header}`, which the patch does not name"


def _among(one: tuple[str, str], others: set[tuple[str, str]]) -> bool:
    """Whether a definition is among others, or one is inside the other: a hunk may be said from either."""
    path, scope = one
    pairs = ((scope, other) for file, other in others if file == path)
    return any(a == b or (a and b and (f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}."))) for a, b in pairs)


def _there(made: PatchFile, before: Mapping[str, str], base: PatchBase, target: PatchBase) -> Iterator[str]:
    """Yield the new lines that upstream added, too, in another place."""
    more = f"vLLM {target.version} has it more often than vLLM {base.version}"
    for change in (one for one in made.changes if not one.is_whole):
        for line in came(change, before.get(change.path, change.path), base, target):
            yield f"{change.path}: `{line}`: {more}: read whether it is double now"


def came(change: ModuleChange, before: str, base: PatchBase, target: PatchBase) -> list[str]:
    """Return the lines that hunks add, and of which a vLLM has more than the one before had in the module `before`.

    A line without a call or an assignment, such as `else:`, says nothing by itself.
    """
    was, now = (_lines(text_of(*one)) for one in ((base, before), (target, change.path)))
    every, gone = (
        Counter(line[1:].strip() for line in change.text.splitlines() if line.startswith(sign)) for sign in "+-"
    )
    new = [line for line in every - gone if line]
    found = [line for line in new if now[line] > was[line]]
    return found if found == new else [line for line in found if "(" in line or "=" in line]


def _lines(text: str | None) -> Counter[str]:
    return Counter(line.strip() for line in (text or "").splitlines())

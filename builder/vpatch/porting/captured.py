"""A patch file of what was done to an installed vLLM, proven on the originals."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from vpatch.core import nesting
from vpatch.core.engine import Engine, Read
from vpatch.core.overlay import Catalogued
from vpatch.core.patch_file import PatchFile, overlay_of
from vpatch.core.verdict import Changeset
from vpatch.errors import Problem, raise_all
from vpatch.porting.bases import line_feeds
from vpatch.porting.capture import Capture
from vpatch.porting.kept import listed
from vpatch.porting.originals import FAILED, unreadable
from vpatch.porting.program import difference, text_in
from vpatch.porting.proof import ModuleVersions, patch_file
from vpatch.tree.locate import Tree


@dataclass(frozen=True)
class Captured:
    """A patch file of what was done.

    Attributes:
        patch: None if there is nothing for it to do, or if it cannot be made.
        unchanged: the modules that are still the same program.
        notes: on what it leaves as it was.
        problems: why it cannot be made, for each module that is to blame.
        without: the overlays in the same modules that it cannot be applied beside.
        reverting: the overlays to revert so that no edit is left.
    """

    patch: PatchFile | None
    unchanged: tuple[str, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    without: tuple[str, ...] = ()
    reverting: tuple[str, ...] = ()


def captured(found: Capture, tree: Tree, name: str, head: Mapping[str, str]) -> Captured:
    """Make a patch file that does what was done to a vLLM, and prove it on the originals.

    Args:
        found: what was done.
        tree: the vLLM.
        name: the id of the patch file.
        head: its fields.

    Raises:
        Failure: modules cannot be parsed.
    """

    base: Mapping[str, bytes | None] = {**found.base, **dict.fromkeys(found.added)}

    def read(file: str) -> bytes | None:
        return base[file] if file in base else tree.read(file)

    def made(*changes: ModuleVersions) -> tuple[PatchFile, tuple[str, ...]]:
        return patch_file(name, head, changes, read)

    if found.missing:
        cause = f"a patch file cannot remove modules: {listed(found.missing)}"
        return Captured(None, unchanged(found), problems=(Problem(FAILED, str(tree.root), cause),))
    if not found.changes:
        return Captured(None, ())
    try:
        patch, notes = made(*found.changes)
        paths = {change.path for change in patch.changes}
        accepted = (f"accepted on its base: {one}" for one in patch.head.get("Accepted", "").splitlines())
        alike = tuple(change.path for change in found.changes if change.path not in paths)
        item = Catalogued(name, overlay_of(patch), "")
        together = _together(found, item, read)
        more = (*_comments(found, patch), *_beside(found, together))
        return Captured(patch, alike, (*notes, *accepted, *more), (), *_misfits(found, item, together, read))
    except ValueError as error:
        whole = {str(tree.root): str(error)}
    alike, alone = unchanged(found), dict[str, str]()
    changes = [change for change in found.changes if change.path not in alike]
    for change in changes:
        try:
            made(change)
        except ValueError as error:
            alone[change.path] = str(error).removeprefix(f"{change.path}: ")
    problems = [Problem(FAILED, where, cause) for where, cause in (alone or whole).items() if changes]
    return Captured(None, alike, problems=tuple(problems))


def _comments(found: Capture, patch: PatchFile) -> Iterator[str]:
    """Yield a note on each module whose new comments are not in the patch file."""
    text = str(patch)
    for change in (one for one in found.changes if one.after and not one.is_data):
        was, now = ({line.strip() for line in (one or "").split("\n")} for one in (change.before, change.after))
        if lost := sorted(line for line in now - was if line.startswith("#") and line not in text):
            yield f"{change.path}: a patch file has no comment beside code that stays: `{'`, `'.join(lost)}`"


def _together(found: Capture, item: Catalogued, read: Read, without: Collection[str] = ()) -> Changeset:
    """Apply the patch file with the overlays below it, if there are any."""
    overlays = [*(one for one in found.beneath if one.id not in {item.id, *without}), item]
    return Engine(overlays).plan(read) if found.on_top else Changeset((), (), {}, ())


def _misfits(
    found: Capture, item: Catalogued, together: Changeset, read: Read
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the overlays below the patch file that it cannot be applied beside, and those to revert before.

    To revert these restores the modules that they change, and only these.
    """
    below = tuple(one.id for one in found.beneath)
    if not together.problems:
        return (), below
    wrong = tuple(one.id for one in together.before if one.problems and one.id != item.id)
    if not wrong or _together(found, item, read, wrong).problems:
        return below, below
    return wrong, wrong if found.on_top.keys() <= {problem.where for problem in together.problems} else below


def _beside(found: Capture, made: Changeset) -> Iterator[str]:
    """Yield a note if the patch file and the overlays below it do not make what stands in the tree."""
    if made.problems:
        yield f"with the overlays that are applied, it does not fit: {made.problems[0]}"
        return
    for path, data in found.on_top.items():
        mine, theirs = (line_feeds(path, text_in(path, one)) for one in (made.files.get(path, b""), data))
        if odd := difference(mine, theirs, mine):
            yield f"{path}: with the overlays that are applied, it makes another program than what stands there: {odd}"


def unchanged(found: Capture) -> tuple[str, ...]:
    """Return the modules that are still the same program.

    They differ in nothing but comments, docstrings, layout, order, or imports that went.

    Raises:
        Failure: modules cannot be parsed.
    """
    same, problems = list[str](), list[Problem]()
    for change in (one for one in found.changes if one.before is not None and not one.is_data):
        before, after = change.before or "", change.after or ""
        try:
            same += [] if difference(before, after, before) else [change.path]
        except (SyntaxError, ValueError, nesting.Unparsable) as error:
            problems.append(unreadable(change.path, error))
    raise_all(problems)
    return tuple(same)

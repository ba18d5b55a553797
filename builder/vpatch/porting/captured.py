"""A patch file of what was done to an installed vLLM, proven on the originals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vpatch.core import nesting
from vpatch.core.patch_file import PatchFile
from vpatch.errors import Problem, raise_all
from vpatch.porting.capture import Capture
from vpatch.porting.originals import FAILED, unreadable
from vpatch.porting.program import difference
from vpatch.porting.proof import ModuleVersions, patch_file
from vpatch.tree.locate import Tree

_MOST = 5  # modules that a message names


@dataclass(frozen=True)
class Captured:
    """A patch file of what was done.

    Attributes:
        patch: None if there is nothing for it to do, or if it cannot be made.
        unchanged: the modules that are still the same program.
        notes: on what it leaves as it was.
        problems: why it cannot be made, for each module that is to blame.
    """

    patch: PatchFile | None
    unchanged: tuple[str, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


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

    def made(*changes: ModuleVersions) -> tuple[PatchFile, tuple[str, ...]]:
        base: Mapping[str, bytes | None] = {**found.base, **dict.fromkeys(found.added)}
        return patch_file(name, head, changes, lambda file: base[file] if file in base else tree.read(file))

    if found.missing:
        cause = f"a patch file cannot remove modules: {_few(found.missing)}"
        return Captured(None, unchanged(found), problems=(Problem(FAILED, str(tree.root), cause),))
    if not found.changes:
        return Captured(None, ())
    try:
        patch, notes = made(*found.changes)
        paths = {change.path for change in patch.changes}
        accepted = (f"accepted on its base: {one}" for one in patch.head.get("Accepted", "").splitlines())
        alike = tuple(change.path for change in found.changes if change.path not in paths)
        return Captured(patch, alike, (*notes, *accepted))
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


def _few(paths: Sequence[str]) -> str:
    more = [f"{len(paths) - _MOST} more"] if len(paths) > _MOST else []
    return ", ".join([*paths[:_MOST], *more])


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

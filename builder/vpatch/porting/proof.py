"""Make a patch file of changed modules and data files, and prove it on the vLLM that they come from."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from vpatch.core import nesting
from vpatch.core.edits.address import Malformed
from vpatch.core.edits.data import written_data
from vpatch.core.engine import Engine
from vpatch.core.listing import is_folder
from vpatch.core.overlay import Catalogued
from vpatch.core.patch_file import CONTROL, FORMAT, ModuleChange, PatchFile, overlay_of, parse
from vpatch.core.verdict import Changeset, State
from vpatch.errors import Failure
from vpatch.porting.hunks import Unsayable, hunks_between
from vpatch.porting.program import difference, text_in
from vpatch.tree.verify import compiles
from vpatch.wrapping import shortened

Read = Callable[[str], bytes | None]


class Unproven(ValueError):
    """A change that no patch file makes; the message says where and why."""


@dataclass(frozen=True)
class ModuleVersions:
    """A module, or a data file, before and after a change; None where it is not there."""

    path: str
    before: str | None
    after: str | None

    @property
    def is_data(self) -> bool:
        """Whether it is a data file, which a patch file has as a whole."""
        return not self.path.endswith(".py")


def patch_file(
    name: str,
    head: Mapping[str, str],
    changes: tuple[ModuleVersions, ...],
    read: Read,
    accepted: Collection[str] | None = None,
) -> tuple[PatchFile, tuple[str, ...]]:
    """Return a patch file that makes a change, proven on its base, and notes on what it leaves as it was.

    On the base, it makes the same program as the change; a second run changes nothing; and what the change made by
    itself is merged; revert restores each byte.

    Args:
        name: the id of the patch file.
        head: its fields, without `Format` and `Accepted`.
        changes: the modules that the change changed.
        read: reads the base.
        accepted: what the check of inserted code may say there; None: all of it, since the author ran the change there.

    Raises:
        Unproven: no patch file makes the change.
    """
    parts, notes = [], []
    for change in changes:
        if change.after is None:
            raise Unproven(f"{change.path}: it is deleted, and a patch file changes or adds files")
        if change.is_data:
            parts += [_data(change, change.after)] if change.after != change.before else []
            continue
        try:
            if change.before is None:
                nesting.parse(change.after)
                parts.append(ModuleChange(change.path, new=True, text=_added(change.after)))
                continue
            text, left = hunks_between(change.path, change.before, change.after)
        except SyntaxError as error:
            raise Unproven(f"{change.path}: line {error.lineno}: not valid Python: {error.msg}") from error
        except (Unsayable, nesting.Unparsable) as error:
            raise Unproven(f"{change.path}: {error}") from error
        notes += [f"{change.path}: {note}" for note in left]
        parts += [ModuleChange(change.path, new=False, text=text)] if text else []
    if not parts:
        raise Unproven("nothing changes but comments, docstrings, layout or imports that go")
    patch = PatchFile({"Format": FORMAT, **head}, tuple(parts))
    return _proven(name, patch, changes, read, accepted), tuple(notes)


def _data(change: ModuleVersions, after: str) -> ModuleChange:
    if odd := CONTROL.search(after):
        raise Unproven(f"{change.path}: it has the control character {odd[0]!r}, which a patch file cannot have")
    if odd := re.search(r"^\+\+(?: .*)?$", after, re.MULTILINE):  # with a + before it, the beginning of the next file
        raise Unproven(f"{change.path}: it has the line `{shortened(odd[0], 60)}`, which a patch file cannot have")
    return ModuleChange(change.path, new=change.before is None, text=written_data(change.before, after))


def _added(text: str) -> str:
    return "".join(f"+{line}\n" for line in text.replace("\r\n", "\n").removesuffix("\n").split("\n"))


def _proven(
    name: str, patch: PatchFile, changes: tuple[ModuleVersions, ...], read: Read, accepted: Collection[str] | None
) -> PatchFile:
    try:
        return _checked(name, patch, changes, read, accepted)
    except (RuntimeError, Failure) as error:  # the result is not what the engine makes again, or an edit fails
        raise Unproven(str(error)) from error


def _checked(
    name: str, patch: PatchFile, changes: tuple[ModuleVersions, ...], read: Read, accepted: Collection[str] | None
) -> PatchFile:
    item = _item(name, patch)
    engine = Engine([item])  # one for all steps: it parses equal bytes once
    made = engine.plan(read)
    # What the check of inserted code says of the base, the author accepted when he ran it there.
    said = [one.remark for one in made.problems]
    if accepted is not None and (odd := next((remark for remark in said if remark not in accepted), None)):
        raise Unproven(odd)
    if made.problems:
        patch = replace(patch, head={**patch.head, "Accepted": "\n".join(said)})
        item = _item(name, patch)
        engine = Engine([item])
        made = engine.plan(read)
    if made.problems:
        raise Unproven(f"on the base it is {made.before[0].state}: {made.problems[0].where}: {made.problems[0].cause}")
    if made.before[0].state is not State.PENDING:
        raise Unproven(f"on the base it is {made.before[0].state} already: {made.before[0].because}")
    for change in changes:
        text, wanted, before = made.files.get(change.path), change.after or "", change.before or ""
        found = text_in(change.path, text) if text is not None else before
        if odd := "its text" * (found != wanted) if change.is_data else difference(found, wanted, before):
            raise Unproven(f"{change.path}: the patch file makes another program of it: {odd}")
    hold_applied(engine, made, read)
    hold_merged(engine, {change.path: (change.after or "").encode() for change in changes}, read)
    return patch


def hold_applied(engine: Engine, made: Changeset, read: Read) -> None:
    """Hold that what a patch makes of a vLLM is valid Python, is complete after one run, and can be reverted.

    Args:
        engine: has the patch alone.
        made: what it makes of the vLLM, where it is pending.
        read: reads the vLLM without it.

    Raises:
        Unproven: one of these is not so.
        Failure: a file cannot be read or written.
    """
    if wrong := [problem for file, data in made.files.items() for problem in compiles(file, data)]:
        raise Unproven(f"{wrong[0].where}: once applied, it {wrong[0].what}: {wrong[0].cause}")
    again = engine.plan(lambda file: made.files[file] if file in made.files else read(file))
    if again.problems or again.files or again.before[0].state is not State.APPLIED:
        raise Unproven(f"once applied, it is {again.before[0].state}: {again.before[0].because}")
    if kept := _not_reverted(engine, read):
        raise Unproven(f"revert would leave {kept} changed")


def hold_merged(engine: Engine, after: Mapping[str, bytes], read: Read) -> None:
    """Hold that a patch is recognized as merged where upstream made its change.

    Args:
        engine: has the patch alone.
        after: the modules with the change, without marks.
        read: reads the vLLM without it.

    Raises:
        Unproven: it is not.
        Failure: a file cannot be read.
    """
    (verdict,) = engine.status(lambda file: after[file] if file in after else read(file))
    if verdict.state is not State.MERGED:
        raise Unproven(f"where the change is made already, it is {verdict.state}: {verdict.because}")


def _not_reverted(engine: Engine, read: Read) -> str:
    """Apply a patch to a copy of what it reads, and revert it; return a path that is not as before, "" if none."""
    from vpatch.tree.apply import apply, revert
    from vpatch.tree.locate import tree_at
    from vpatch.tree.write_plan import SitePackages

    seen: dict[str, bytes | None] = {}
    engine.plan(lambda file: seen.setdefault(file, read(file)))
    with TemporaryDirectory() as folder:
        root = Path(folder)
        files = {file: data for file, data in seen.items() if data is not None and not is_folder(file)}
        rows = "".join(f'"{file}",,\n' for file in files)
        info = {"vllm-0.dist-info/METADATA": b"Name: vllm\nVersion: 0\n", "vllm-0.dist-info/RECORD": rows.encode()}
        needed = {"vllm/__init__.py": b"", "vllm/config/__init__.py": b""}  # without them, it is no vLLM
        for file, data in {**needed, **info, **files}.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes(data)
        store, before = SitePackages(tree_at(root)), _contents(root)
        apply(store, engine.overlays, engine)
        revert(store, engine.overlays, None, engine)
        after = _contents(root)
        return next((path for path in sorted({*before, *after}) if before.get(path, "") != after.get(path, "")), "")


def _contents(root: Path) -> dict[str, bytes | None]:
    """Read all files in a folder, by path; None are folders."""
    found = sorted(root.rglob("*"))
    return {path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes() for path in found}


def _item(name: str, patch: PatchFile) -> Catalogued:
    try:
        parse(str(patch).encode())  # what is written can be read
        return Catalogued(name, overlay_of(patch), patch.head["Subject"])
    except (Malformed, ValueError) as error:
        raise Unproven(str(error)) from error

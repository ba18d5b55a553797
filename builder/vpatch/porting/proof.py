"""Make a patch file of changed modules, and prove it on the vLLM that they come from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from vpatch.core import nesting
from vpatch.core.edits.address import Malformed
from vpatch.core.engine import Engine
from vpatch.core.listing import is_folder
from vpatch.core.overlay import Catalogued
from vpatch.core.patch_file import FORMAT, ModuleChange, PatchFile, overlay_of, parse
from vpatch.core.verdict import State
from vpatch.errors import Failure
from vpatch.porting.hunks import Unsayable, hunks_between
from vpatch.porting.program import difference

Read = Callable[[str], bytes | None]


class Unproven(ValueError):
    """A change that no patch file makes; the message says where and why."""


@dataclass(frozen=True)
class ModuleVersions:
    """A module before and after a change; None where it is not there."""

    path: str
    before: str | None
    after: str | None


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
            raise Unproven(f"{change.path}: it is deleted, and a patch file changes or adds modules")
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
        found = nesting.decode(text)[0] if text else before
        if odd := difference(found, wanted, before):
            raise Unproven(f"{change.path}: the patch file makes another program of it: {odd}")
    again = engine.plan(lambda file: made.files[file] if file in made.files else read(file))
    if again.problems or again.files or again.before[0].state is not State.APPLIED:
        raise Unproven(f"once applied, it is {again.before[0].state}: {again.before[0].because}")
    if kept := _not_reverted(item, engine, read):
        raise Unproven(f"revert would leave {kept} changed")
    after = {change.path: (change.after or "").encode() for change in changes}
    (verdict,) = engine.status(lambda file: after[file] if file in after else read(file))
    if verdict.state is not State.MERGED:
        raise Unproven(f"where the change is made already, it is {verdict.state}: {verdict.because}")
    return patch


def _not_reverted(item: Catalogued, engine: Engine, read: Read) -> str:
    """Apply a patch to a copy of what it reads, and revert it; return a path that is not as before, "" if none."""
    from vpatch.tree.apply import apply, revert
    from vpatch.tree.locate import tree_at
    from vpatch.tree.write_plan import SitePackages

    seen: dict[str, bytes | None] = {}
    engine.plan(lambda file: seen.setdefault(file, read(file)))
    with TemporaryDirectory() as folder:
        root = Path(folder)
        files = {file: data for file, data in seen.items() if data is not None and not is_folder(file)}
        rows = "".join(f"{file},,\n" for file in files)
        info = {"vllm-0.dist-info/METADATA": b"Name: vllm\nVersion: 0\n", "vllm-0.dist-info/RECORD": rows.encode()}
        needed = {"vllm/__init__.py": b"", "vllm/config/__init__.py": b""}  # without them, it is no vLLM
        for file, data in {**needed, **info, **files}.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_bytes(data)
        store, before = SitePackages(tree_at(root)), _contents(root)
        apply(store, [item], engine)
        revert(store, [item], None, engine)
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

"""Tests for overlays: a table of cases over real releases, and one function that runs a case.

CASES = (
    Case("0.20.2", State.PENDING),
    Case("0.21.0", State.MERGED),
    Case("0.20.2", State.DRIFTED, replace={FILE: ("old text", "new text")}, says="a part of the message"),
)

@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case, tmp_path):
    check(case, "my-overlay", tree=folder_of(case.release), scratch=tmp_path)

For patch files, one line makes all tests: `test_patches = patches("patches")`.
"""

from __future__ import annotations

import ast
import filecmp
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from vpatch import locking
from vpatch.core.calls import inserted_by
from vpatch.core.catalogue import discover, loaded, select
from vpatch.core.edits.definitions import AddFile
from vpatch.core.engine import Engine, Read
from vpatch.core.marks import data_marked, without_marks
from vpatch.core.overlay import COMPANIONS, Catalogued, Edit, Overlay, declared
from vpatch.core.verdict import State, Verdict
from vpatch.errors import Failure, Problem, collecting, raise_all
from vpatch.porting.proof import Unproven, hold_applied, hold_merged
from vpatch.project import opened
from vpatch.settings import cache_folder
from vpatch.tree.apply import apply, revert
from vpatch.tree.locate import locate
from vpatch.tree.verify import verify
from vpatch.tree.write_plan import SitePackages

if TYPE_CHECKING:
    from vpatch.matrix.releases import IndexRelease

__all__ = ["Case", "State", "check", "patches", "release"]


@dataclass(frozen=True)
class Case:
    """The expected state and result of an overlay on one tree.

    Attributes:
        release: names the tree; only the caller uses it.
        before: the overlay's state. If it is pending, `check` applies the overlay.
        replace: changes to the tree before that: in each file, a text that occurs once and its replacement.
        result: the expected source of files after it is applied, compared as syntax trees.
        says: a part of the reason or of a problem.
    """

    release: str
    before: State
    replace: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    result: Mapping[str, str] = field(default_factory=dict)
    says: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, [self.release, str(self.before), self.says.replace(" ", "_")[:30]]))


def check(case: Case, overlay: str, tree: Path, scratch: Path) -> Path:
    """Run a case; return the tree's copy below `scratch`, with the overlay applied if it is pending.

    `check` asserts the state before, the expected result, the state after, that a second run writes nothing, that the
    applied tree verifies, and that `revert` restores every byte. If the overlay is not pending, nothing may change. If
    it is, `python -m vpatch.calls` must have recorded what its code takes from vLLM, and nothing of it may be new here.

    Args:
        case: the case.
        overlay: the id of an installed overlay.
        tree: a folder with the release's `vllm/` and dist-info; it does not change.
        scratch: an empty folder.

    Raises:
        AssertionError: an assertion fails.
    """
    root, pristine = scratch / "tree", scratch / "pristine"
    # With hard links, a write into a file instead of a new one would show up as a difference.
    shutil.copytree(tree, root, copy_function=_link)
    for file, (old, new) in case.replace.items():
        text = (root / file).read_bytes().decode()
        _hold(text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}")
        (root / file).unlink()
        (root / file).write_bytes(text.replace(old, new).encode())
    shutil.copytree(root, pristine, copy_function=_link)
    store, chosen = SitePackages(locate(root)), select(discover(), (overlay,))

    engine = Engine(chosen)
    (found,) = engine.status(store.tree.read)
    reasons = "; ".join([found.because, *map(str, found.problems)])
    _hold(found.state is case.before, f"{overlay} is {found.state}, not {case.before}: {reasons}")
    _hold(case.says in reasons, f"{case.says!r} is not in: {reasons}")

    changeset, writes = apply(store, chosen, engine)
    changed = writes.changed
    (after,) = changeset.after
    _hold(bool(changed) == (case.before is State.PENDING), f"{case.before}, and yet it wrote {changed}")
    _hold(bool(changed) or not _differences(root, pristine), "it says that it wrote nothing, and it did")
    if changed:
        _hold_recorded(chosen[0], found)
        _hold(after.state is State.APPLIED, f"{overlay} is {after.state} after it was applied")
        for file, text in case.result.items():
            got = ast.dump(ast.parse((root / file).read_bytes()), indent=1)
            _hold(got == ast.dump(ast.parse(text), indent=1), f"{file} is not what it should be:\n{got}")
        _hold(not apply(store, chosen, engine)[1].changed, "the second run wrote something")
        problems = verify(store.tree, chosen, named=(overlay,), python=None, engine=engine).problems
        _hold(not problems, "\n".join(map(str, problems)))
        applied = scratch / "applied"
        shutil.copytree(root, applied, copy_function=_link)
        revert(store, chosen, None, engine)
        _hold(not (left := _differences(root, pristine)), f"revert left {left}")
        return applied
    return root


def digests(overlay: Overlay) -> dict[str, str]:
    """Return a digest of each piece of an overlay's code, by its key in a list of calls."""
    edits: dict[str, dict[Edit, None]] = {}
    for part in overlay.parts:
        for shape in part.shapes:
            for edit in shape.edits:
                key = edit.file if isinstance(edit, AddFile) else inserted_by(part.name, shape.name)
                edits.setdefault(key, {})[edit] = None
    return {key: hashlib.sha256(repr([*each]).encode()).hexdigest()[:8] for key, each in edits.items()}


def _hold_recorded(item: Catalogued, found: Verdict) -> None:
    """Hold that the list of what an overlay takes from vLLM is that of its code."""
    recorded = item.calls.code if item.calls else {}
    now = digests(item.overlay)
    old = [key for key, taken in recorded.items() if taken.digest != now.get(key)]
    notes = [note for part in found.parts for note in part.notes if "recorded" in note]
    again = f"run `python -m vpatch.calls {item.id} --release RELEASE ...`"
    _hold(not (old or notes), f"its list of calls is not that of its code ({', '.join([*old, *notes])}): {again}")


def patches(*places: str | os.PathLike[str]) -> Callable[..., None]:
    """Return a test for pytest that has a case for each patch file and each release that its head names.

        test_patches = patches("patches")

    The field `Releases` has the state to expect on each release of a span. On the `Base`, also of a further shape, the
    patch is pending unless `Releases` has another state. A pending patch must make valid Python, change nothing in a
    second run, be recognized as merged where upstream made its change (unless it adds modules to `vllm/_vpatch/`), and
    be reverted byte for byte. vpatch executes nothing of it.

    Of a release, only the files that the patch names are read, from the package index through vpatch's cache.

    Args:
        places: folders of patch files, or single ones, relative to the current folder. Default: what the project's
            `vpatch.toml` names.

    Raises:
        UnknownName: there is no such folder or file.
        Failure: a patch file cannot be read, or a folder has no patch file; lists all problems.
    """
    import pytest

    cases = [case for item in _patch_files(*places) for case in _cases(item)]

    @pytest.mark.parametrize("case", cases, ids=str)
    def test(case: _PatchCase) -> None:
        if problem := case.problem():
            pytest.fail(problem, pytrace=False)

    return test


@dataclass(frozen=True)
class _PatchCase:
    item: Catalogued
    release: Version
    expected: State

    def __str__(self) -> str:
        return f"{self.item.id}-{self.release}-{self.expected}"

    def problem(self) -> str:
        """Return why the case does not hold, in a sentence; "" if it does."""
        where, engine = f"{self.item.source} on vLLM {self.release}: expected {self.expected}", Engine([self.item])
        try:
            read = _reading(self.release, engine.files)
            (found,) = engine.status(read)
            if found.state is not self.expected:
                return f"{where}, found {found.state}: {found.because}"
            if found.state is State.PENDING:
                _hold_pending(engine, read)
        except Unproven as error:
            return f"{where}, and it is, but {error}"
        except (Failure, RuntimeError) as error:
            return f"{where}, found no state: {error}"
        return ""


def _hold_pending(engine: Engine, read: Read) -> None:
    made = engine.plan(read)
    hold_applied(engine, made, read)
    upstreams = {file: without_marks(data) for file, data in made.files.items() if not data_marked(data)}
    if not any(file.startswith(COMPANIONS) for file in upstreams):  # which upstream will not have
        hold_merged(engine, upstreams, read)


def _patch_files(*places: str | os.PathLike[str]) -> Iterator[Catalogued]:
    """Yield the patch files.

    Raises:
        Failure: some cannot be read, or the places have no patch file.
    """
    problems, found = list[Problem](), list[Catalogued]()
    for file in opened([Path(place) for place in places], ignored=bool(places)).sources.patches:
        with collecting(problems):
            found.append(loaded(file))
    if not (found or problems):
        problems.append(Problem("no patch files", str(Path.cwd()), "name a folder, or write one into vpatch.toml"))
    raise_all(problems)
    yield from found


def _cases(item: Catalogued) -> Iterator[_PatchCase]:
    """Yield the cases of a patch file, the oldest release first."""
    named = {Version(shape.name) for part in item.overlay.parts for shape in part.shapes}
    for span in item.overlay.releases:
        known = _on_index()
        # If the index fails, so does each case, but not the whole run of pytest.
        listed = () if isinstance(known, Failure) else known
        inside = [one for one in listed if SpecifierSet(span, prereleases=True).contains(one)]
        named.update(inside or [Version(span.lstrip(">=").partition(",")[0])])  # no such release: a case that fails
    for one in sorted(named):
        state, _ = declared(tuple(item.overlay.releases.items()), str(one))
        yield _PatchCase(item, one, state or State.PENDING)


@cache
def _on_index() -> Mapping[Version, IndexRelease] | Failure:
    """Return the final releases on the index, or the failure to list them; one process asks once."""
    from vpatch.matrix.reading import user_cache
    from vpatch.matrix.releases import releases_of

    try:
        return {Version(one.wheel.version): one for one in releases_of("vllm", (), user_cache()).releases}
    except Failure as failure:
        return failure


def _reading(version: Version, files: tuple[str, ...]) -> Read:
    """Return what reads the files of a release.

    Raises:
        UnknownName: there is no such release.
        Failure: it cannot be read.
    """
    from vpatch.matrix.reading import ReleaseReads

    known = _on_index()
    if isinstance(known, Failure):
        raise known
    final = known.get(version)
    return (ReleaseReads.of(final, files) if final else ReleaseReads.opened(str(version), files)).read


def release(version: str, folder: Path | None = None) -> Path:
    """Return a folder with the pristine sources of a release, fetched on first use. Do not change it.

    Args:
        version: a release of vLLM.
        folder: where releases are kept. Default: `vpatch/releases` in the user's cache folder.

    Raises:
        Failure: the release cannot be fetched.
    """
    from vpatch.release.fetch import fetch

    target = (folder or cache_folder("or name a folder") / "releases") / version
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{version}.lock").open("w") as lock:
        locking.lock(lock.fileno())
        if not target.exists():
            fetch(version, target)
    return target


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _differences(one: Path, other: Path) -> list[str]:
    """List the files that differ between two folders, or are in one only."""
    files = {p.relative_to(top) for top in (one, other) for p in top.rglob("*") if p.is_file()}
    return sorted(
        str(f)
        for f in files
        if not ((one / f).is_file() and (other / f).is_file() and filecmp.cmp(one / f, other / f, shallow=False))
    )


def _hold(fact: bool, message: str) -> None:  # noqa: FBT001 - like `assert`, which `python -O` would drop
    if not fact:
        raise AssertionError(message)

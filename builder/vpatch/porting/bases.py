"""The vLLM that a patch was made for: named by the user or the patch, or the one that all of its hunks fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from vpatch.api import open_tree
from vpatch.core import nesting
from vpatch.errors import Failure, Problem
from vpatch.guest import record
from vpatch.porting.diffs import Carried
from vpatch.porting.fitting import Misfit, fit, patched
from vpatch.porting.program import text_in
from vpatch.porting.proof import Read
from vpatch.tree.locate import Reads, Tree, locate

FAILED = "cannot import"


@dataclass(frozen=True)
class PatchBase:
    """A vLLM that a patch may have been made for.

    Attributes:
        version: its version.
        name: what to call it in messages.
        read: reads its files.
    """

    version: str
    name: str
    read: Read


def base_named(name: str, files: Sequence[str]) -> PatchBase:
    """Return the vLLM in a folder, or the release of this name.

    Raises:
        UnknownName: there is no such release.
        Failure: it cannot be read, or is of unknown version.
    """
    return base_in(locate(Path(name))) if Path(name).exists() else base_of(name, files)


def base_in(tree: Tree) -> PatchBase:
    """Return the vLLM in a tree, as it was before vpatch.

    Raises:
        Failure: it is of unknown version, as a source checkout is.
    """
    if tree.version is None:
        hint = "name the release that it is closest to instead"
        raise Failure(Problem(FAILED, str(tree.root), "its version is not known", hint=hint))
    seen, originals = Reads(tree), open_tree(tree).originals

    def read(path: str) -> bytes | None:
        return originals[path] if path in originals else seen.read(path)

    return PatchBase(tree.version, f"{tree.version} in {tree.root}", read)


def base_of(version: str, files: Sequence[str]) -> PatchBase:
    """Return a release, of which these files are read at once.

    Raises:
        UnknownName: there is no such release.
        Failure: it cannot be read.
    """
    from vpatch.matrix.reading import ReleaseReads

    reads = ReleaseReads.opened(version, files)
    return PatchBase(reads.release.wheel.version, reads.release.name, reads.read)


def releases(files: Sequence[str], *, held: bool = False) -> Iterator[PatchBase]:
    """Yield the releases on the index, the newest first.

    Args:
        files: what is read of each at once.
        held: only those of which the cache has these files.

    Raises:
        Failure: there is no list of them, or one cannot be read.
    """
    from vpatch.matrix.cache import Cache
    from vpatch.matrix.reading import ReleaseReads
    from vpatch.matrix.releases import releases_of

    cache = None
    with suppress(Failure):  # one that cannot be written saves nothing, and stops nothing
        cache = Cache.opened()
    for release in reversed(releases_of("vllm", (), cache).releases):
        if held and not release.holds(files):
            continue
        reads = ReleaseReads.of(release, files)
        yield PatchBase(release.wheel.version, release.name, reads.read)


def later(base: PatchBase, files: Sequence[str]) -> list[PatchBase]:
    """Return the releases on the index after a vLLM, the oldest first; of each, these files are read at once.

    Raises:
        Failure: there is no list of them, or one cannot be read.
    """
    from packaging.version import Version

    mine = Version(base.version)
    return [*takewhile(lambda one: Version(one.version) > mine, releases(files))][::-1]


def text_of(base: PatchBase, path: str) -> str | None:
    """Return the text of a module or data file; None if the base does not have it.

    Raises:
        Failure: it cannot be read as text.
    """
    data = base.read(path)
    return None if data is None else decoded(path, data)


def modules_of(base: PatchBase) -> list[str]:
    """Return the paths of the modules that the RECORD of a vLLM lists, sorted."""
    rows = record.parse(base.read(f"vllm-{base.version}.dist-info/RECORD") or b"").rows
    return sorted(row.path for row in rows if row.path.startswith("vllm/") and row.path.endswith(".py"))


def decoded(path: str, data: bytes) -> str:
    """Return the text of a module or data file.

    Raises:
        Failure: it cannot be read as text.
    """
    try:
        return text_in(path, data)
    except (nesting.Unparsable, SyntaxError, UnicodeDecodeError) as error:
        raise Failure(Problem(FAILED, path, str(error))) from error


def line_feeds(path: str, text: str) -> str:
    """Return the text of a module with lines that end with line feeds alone, as Python reads them; else unchanged."""
    return re.sub(r"\r\n?", "\n", text) if path.endswith(".py") else text


def fitting(patch: Carried, bases: Iterator[PatchBase]) -> PatchBase:
    """Return the first vLLM that all hunks of a patch fit where they say they do, or the one with the least offset.

    Raises:
        Failure: all hunks fit none of them; the message names the nearest one.
    """
    best: tuple[int, PatchBase] | None = None
    nearest, most = "", 0
    total = sum(len(change.hunks) for change in patch.changes)
    for base in bases:
        found = [fit(change, text_of(base, change.path)) for change in patch.changes]
        fits, offset = sum(one.fitting for one in found), sum(one.offset for one in found)
        if fits > most:
            nearest, most = base.name, fits
        with suppress(Misfit):
            if fits == total and (best is None or offset < best[0]):
                for change in patch.changes:
                    patched(change, text_of(base, change.path))
                best = (offset, base)
        if best and not best[0]:
            break
    if best:
        return best[1]
    near = f"; nearest is {nearest}, {most} of {total} hunks" if most else ""
    raise Failure(
        Problem(FAILED, patch.name, f"it fits no release{near}", hint="`--base` names the vLLM that it is for")
    )

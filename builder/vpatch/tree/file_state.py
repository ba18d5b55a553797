"""One file of the tree: what it is, what is asked of it, and what it was before vpatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vpatch.core.marks import marks_in
from vpatch.errors import Failure, Problem
from vpatch.tree import backup

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vpatch.tree.backup import Kept
    from vpatch.tree.record import Record


@dataclass(frozen=True)
class Asked:
    """What the caller of `writer.settle` wants."""

    desired: Mapping[str, bytes]
    pristine: Callable[[str, bytes], bool]
    allow_edited: bool


@dataclass(frozen=True)
class File:
    """The bytes of one file as they are, as they should be, and before vpatch; None where there is no such file.

    `origin` is None, too, for a file whose original is lost. `tracked` says that `want` is the work of overlays, which
    `revert` has to undo. `edited` says that somebody's edit is in `want`, too: `revert` must not lose it.
    """

    path: str
    now: bytes | None
    want: bytes | None
    origin: bytes | None
    tracked: bool
    edited: bool = False

    @property
    def changes(self) -> bool:
        """Whether the file has to be written or removed."""
        return self.now != self.want

    @property
    def goes_back(self) -> bool:
        """Whether the file should be as it was before vpatch."""
        return self.want == self.origin


def is_edited(path: str, now: bytes | None, have: Kept) -> bool:
    """Whether a file that something is kept of holds neither its original nor anything that vpatch wrote."""
    return path in have.paths and now is not None and not have.wrote(path, now)


def judge(path: str, now: bytes | None, asked: Asked, have: Kept, rows: Record | None) -> File:
    """Say what has to become of the file at `path`, which holds `now`.

    Raises:
        Failure: somebody edited it, or it cannot be put back later.
    """
    want = asked.desired.get(path)
    anew = _installed_anew(path, now, asked, have, rows)
    if is_edited(path, now, have) and not anew and now != want and (want is None or not asked.allow_edited):
        cause = "somebody's edit is in it and would be lost; undo it, or delete the file, and run again"
        raise Failure(Problem("edited after vpatch", path, cause))
    if backup.is_companion(path):
        return File(path, now, want, None, tracked=want is not None)
    origin = now if anew else _origin(path, now, want, asked, have)
    if want is None:
        return File(path, now, origin, origin, tracked=False)
    edited = is_edited(path, now, have) and path in have.after and origin is not now
    return File(path, now, want, origin, tracked=origin is not None and want != origin, edited=edited)


def _installed_anew(path: str, now: bytes | None, asked: Asked, have: Kept, rows: Record | None) -> bool:
    """Whether an installer wrote both the file and its row: what is kept is of the installation before."""
    if now is None or backup.is_companion(path) or have.provenance is None or not is_edited(path, now, have):
        return False
    row = rows.row(path) if rows else None
    return row is not None and row.is_true_of(now) and asked.pristine(path, now)


def _origin(path: str, now: bytes | None, want: bytes | None, asked: Asked, have: Kept) -> bytes | None:
    original = have.originals.get(path)
    if now is None:
        if original is None and want is not None:
            raise Failure(Problem("no such file", path, "an overlay changes it"))
        return original
    ours = now == want or have.wrote(path, now)
    if original is not None and (ours or not asked.pristine(path, now)):
        return original
    if have.before.get(path) == backup.sha256(now) or (not ours and asked.pristine(path, now)):
        return now  # a revert was killed after it dropped the original; or the file is as somebody installed it
    if now == want:
        return None
    cause = "it was changed before, and what it was is lost with the dist-info's vpatch folder; reinstall vLLM"
    if not have.anything and (names := dict.fromkeys(marks_in(now))):
        # Nothing says that vpatch was ever here: the comment may be part of the release.
        marks = ", ".join(f"`# vpatch: {name}`" for name in names)
        cause = (
            f"vpatch keeps nothing of this tree, and the file has {marks}; if an overlay changed it, reinstall vLLM; "
        )
        cause += "if it is a mere comment, reword it"
    raise Failure(Problem("no original kept", path, cause))

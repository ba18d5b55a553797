"""What stands in a tree against its originals, and what others than vpatch changed in the same files."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import cached_property
from itertools import chain
from pathlib import Path

from vpatch.core.engine import Engine
from vpatch.core.marks import marks_in
from vpatch.core.matching import same
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import Changeset, PartVerdict, Verdict
from vpatch.errors import Code, Problem, shell
from vpatch.tree.apply import Snapshot, what_it_made
from vpatch.tree.beneath import beneath
from vpatch.tree.bytecode import refusal
from vpatch.tree.copies import as_applied
from vpatch.tree.locate import Tree, is_checkout
from vpatch.tree.unified import unified
from vpatch.tree.upgrade import marks
from vpatch.wrapping import from_here, shortened

_MOST = 160  # characters of a line that is quoted
_WHAT = "edited after vpatch"
_BROKEN = "it does not compile: "


@dataclass(frozen=True)
class Differences:
    """The files of a tree that vpatch and others have changed; None stands for a file that does not exist.

    Attributes:
        root: the folder that holds `vllm/`.
        files: by path, the original bytes and the present ones.
        edited: of the files among them that were edited after vpatch, what it had made and what stands there.
        applied: the ids of the overlays whose marks are in files that vpatch changed.
    """

    root: Path
    files: Mapping[str, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    edited: Mapping[str, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    applied: Collection[str] = ()

    @property
    def edits(self) -> list[str]:
        """The edits of others as a unified diff, as lines without newline."""
        return [line for file, (ours, now) in self.edited.items() for line in unified(file, ours, now)]

    @property
    def places(self) -> dict[str, str]:
        """The lines that others changed, by path, as in "12 to 14, 40"."""
        pairs = {file: (ours or b"", now or b"") for file, (ours, now) in self.edited.items()}
        return {file: ", ".join(_span(first, end) for *_, first, end in _hunks(*pair)) for file, pair in pairs.items()}

    def notes(self, problems: Iterable[Problem] = ()) -> tuple[str, ...]:
        """Return a note on each edited file that the problems do not name as one."""
        told = {problem.where for problem in problems if problem.code is Code.EDITED}
        places = {file: at(lines) for file, lines in self.places.items() if file not in told}
        return tuple(f"{file}: {_WHAT}, {lines}; {self.way_out(file)}" for file, lines in places.items())

    def blamed(self, verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
        """Return verdicts on the tree; where an overlay that was applied does not fit, they name the edit."""
        causes = self._causes(verdicts)

        def revised(part: PartVerdict) -> PartVerdict:
            if (found := _translated(part.problems, causes)) == part.problems:
                return part
            return replace(part, problems=found, because=f"{found[0].where}: {found[0].cause}")

        return tuple(replace(one, parts=tuple(map(revised, one.parts))) for one in verdicts) if causes else (*verdicts,)

    def planned(self, changeset: Changeset) -> Changeset:
        """Return a changeset whose verdicts and problems name the edits."""
        found = _translated(changeset.problems, self._causes(changeset.before))
        before, after = self.blamed(changeset.before), self.blamed(changeset.after)
        return replace(changeset, before=before, after=after, problems=found)

    def verified(
        self, problems: Sequence[Problem], verdicts: Sequence[Verdict], files: Collection[str]
    ) -> list[Problem]:
        """Return what `verify` found, with the edits in place of what follows from them, and all edits of `files`.

        A file that has none of vpatch's work left is no edit if RECORD is true of it: an installer wrote both.
        """
        untrue = {one.where for one in problems if one.code is Code.RECORD_UNTRUE and one.where in self.edited}
        others = [one for one in problems if one.code is not Code.RECORD_UNTRUE or one.where not in untrue]
        found = _translated(others, self._causes(verdicts))
        told = {one.where for one in found if one.code is Code.EDITED}
        broken = {(one.where, one.cause) for one in found if one.code is Code.EDITED}
        found = tuple(one for one in found if (one.where, f"{_BROKEN}{one.cause}") not in broken)
        ours = {file for file, (_, now) in self.edited.items() if file in files and marks_in(now or b"")}
        places = {file: at(lines) for file, lines in self.places.items() if file in (ours | untrue) - told}
        return [*found, *(self._problem(file, lines) for file, lines in places.items())]

    def _causes(self, verdicts: Sequence[Verdict]) -> Mapping[Problem, Problem]:
        """Return what an edit is to blame for.

        An overlay that was applied fits what vpatch had made. Of one that looks into a module which does not compile,
        applied or not, nothing else is known.
        """
        found: dict[Problem, Problem] = {}
        for one in verdicts:
            unread = [self._unread[problem.where] for problem in one.problems if problem.where in self._unread]
            if unread:
                found |= {problem: self._unread.get(problem.where, unread[0]) for problem in one.problems}
            elif one.id in self.applied:
                found |= {
                    problem: self._cause(one.id, problem) for problem in one.problems if problem.where in self.edited
                }
        return found

    @cached_property
    def _unread(self) -> Mapping[str, Problem]:
        """The edited modules that do not compile, each with that problem."""
        why = {file: refusal(now or b"", file) for file, (_, now) in self.edited.items()}
        return {file: self._problem(file, f"{_BROKEN}{what}") for file, what in why.items() if what}

    def _cause(self, overlay: str, problem: Problem) -> Problem:
        ours, now = (data or b"" for data in self.edited[problem.where])
        return self._problem(problem.where, _expected(overlay, ours, now), problem.scope)

    def _problem(self, file: str, cause: str, scope: str = "") -> Problem:
        return Problem(_WHAT, file, cause, scope, Code.EDITED, self.way_out(file))

    def way_out(self, file: str) -> str:
        """Return what to do about the edit of a file."""
        return ways_out(self.root, keep=file in self.captured)

    @cached_property
    def captured(self) -> frozenset[str]:
        """The edited files of which `capture` may make a patch file; one that cannot be in it has it refuse all."""
        for file, (ours, now) in self.edited.items():
            if (original := self.files[file][0]) is None:  # vpatch added it
                continue
            if now is None or ours in (None, original) or refusal(now, file) or beneath(original, ours or b"", now)[1]:
                return frozenset()
        pairs = {} if is_checkout(Tree(self.root, None, None)) else self.edited
        changed = {file: pair for file, pair in pairs.items() if self.files[file][0] is not None}
        return frozenset(file for file, (made, now) in changed.items() if not _alike(file, made or b"", now or b""))


def compared(tree: Tree, seen: Snapshot, installed: Sequence[Catalogued]) -> Differences:
    """Compare a tree with its originals, by the overlays that are installed. Raises what `standing` raises."""
    return standing(seen, what_it_made(seen, Engine(as_applied(tree, tree.read, installed))))


def standing(seen: Snapshot, made: Mapping[str, bytes]) -> Differences:
    """Compare a tree with its originals.

    Args:
        seen: the tree.
        made: what `what_it_made` computes with all overlays that may be in the tree. Where an overlay is not among
            them, what vpatch had made is unknown, and an edited file counts as edited as a whole.

    Raises:
        Failure: a file, or what is kept of the originals, cannot be read.
    """
    originals = seen.originals
    pairs = ((file, original, seen.read(file)) for file, original in sorted(originals.items()))
    files = {file: (original, now) for file, original, now in pairs if original != now}
    ours = {file: made.get(file, originals[file]) for file in seen.unrecognized if file in files}
    edited = {file: (was, files[file][1]) for file, was in ours.items() if was != files[file][1]}
    return Differences(seen.tree.root, files, edited, marks(seen).keys())


def at(places: str) -> str:
    """Return `places` of an edited file in words: "line 12", "lines 12 to 14, 40"."""
    return f"line {places}" if places.isdigit() else f"lines {places}"


def ways_out(root: Path, *, keep: bool) -> str:
    """Return what to do about an edit of a file in a tree at `root`; `keep` if `vpatch capture` takes it."""
    words = (("diff", "--edits"), ("capture",), ("revert", "--force"))
    shown, kept, discarded = (shell("vpatch", *one, from_here(root)) for one in words)
    kept = f" keep it as a patch file by {kept}," if keep else ""
    return f"{shown} shows it; undo it,{kept} or discard it, and all overlays, by {discarded}"


def _alike(file: str, one: bytes, other: bytes) -> bool:
    """Whether a module was changed in comments or layout alone, of which a patch file has nothing."""
    return file.endswith(".py") and same(ast.parse(one), ast.parse(other))


def _translated(problems: Iterable[Problem], causes: Mapping[Problem, Problem]) -> tuple[Problem, ...]:
    return tuple(dict.fromkeys(causes.get(problem, problem) for problem in problems))


def _hunks(old: bytes, new: bytes) -> list[tuple[Sequence[bytes], Sequence[bytes], int, int]]:
    """Return the lines that differ, old and new, with the range of the new ones."""
    before, after = old.split(b"\n"), new.split(b"\n")
    codes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return [(before[a:b], after[first:end], first, end) for tag, a, b, first, end in codes if tag != "equal"]


def _span(first: int, end: int) -> str:
    """Return the numbers of new lines, as in "12 to 14"; where lines are missing, of the one before them."""
    last = max(end, first, 1)
    return str(last) if first + 1 >= last else f"{first + 1} to {last}"


def _expected(overlay: str, old: bytes, new: bytes) -> str:
    """Return which line was expected and which was found, where an edit changed what an overlay made."""
    hunks = _hunks(old, new)
    own = (hunk for hunk in hunks if overlay in marks_in(b"\n".join(hunk[0])))
    code = (hunk for hunk in hunks if not {line.strip()[:1] for line in (*hunk[0], *hunk[1])} <= {b"", b"#"})
    was, now, first, end = next(chain(own, code), hunks[0])
    place = at(_span(first, end))
    if not was:
        return f"{place}: `{_quoted(now)}` was inserted"
    found = f"found `{_quoted(now)}`" if now else "which is missing behind it"
    return f"{place}: expected `{_quoted(was)}`, {found}"


def _quoted(lines: Sequence[bytes]) -> str:
    """Return the first line that is not empty."""
    text = next((line for line in lines if line.strip()), b"").decode("utf-8", "replace").strip()
    return shortened(text, _MOST)

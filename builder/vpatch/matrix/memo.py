"""A cache of the matrix' verdicts, keyed by every input, so that a second run tries no overlay again.

The inputs are the content of every file of the vLLM that any overlay asked for, there or not; the code of vpatch, of
the overlays and of what they import; the interpreter; and which overlays are tried, alone and together. A memo is a
note of the cache: sealed with its hash, written whole, and renamed into place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from sys import modules
from typing import Any

from vpatch.core import sources
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import PartVerdict, State, Verdict
from vpatch.errors import Code, Failure, Problem
from vpatch.manifest import sha256
from vpatch.matrix.cache import VERDICTS, Cache
from vpatch.matrix.verdicts import OPTIONAL, Cell, FilesRead, Row, check
from vpatch.settings import cache_folder
from vpatch.stamps import Stamp, below, surroundings, unchanged

ROWS = 256  # of one memo, each of some 20 kB: releases, and months of nightly builds
MEMOS = 8  # interpreters and selections of overlays that a user alternates between

Hashes = Mapping[str, str | None]
"""The sha256 of each file, or listing of a folder, that was asked for; None for what the vLLM lacks."""

# Another run may have more memory, or a higher limit of recursion.
_PASSING = frozenset({Code.OVERLAY_FAILED, Code.NOT_TOGETHER})

_PROBLEM = {"what": str, "where": str, "cause": str, "scope": str, "code": str, "hint": str}
_TEXTS = {"name": str, "because": str, "files": [str], "shape": OPTIONAL, "notes": [str], "brief": str}
_VERDICT = {"id": str, "parts": [{**_TEXTS, "state": State, "problems": [_PROBLEM]}]}
_ROW = {"sought": dict, "cells": [{"verdict": _VERDICT, "problems": [_PROBLEM]}], "problems": [_PROBLEM]}


def hashes(files: Mapping[str, bytes], asked: Iterable[str]) -> Hashes:
    """Return the hashes of what was asked for; `files` has what the vLLM has of it."""
    return {file: sha256(files[file]) if file in files else None for file in sorted(asked)}


@dataclass
class RowMemo:
    """Rows of earlier runs, by the hashes of the files that overlays name.

    Attributes:
        ids: the overlays, in the order of a row's cells.
        code: the stamps of the code that the rows follow from.
        rows: the rows as JSON.
        used: the keys of rows that this run recalls or keeps.
    """

    cache: Cache
    name: str
    ids: Sequence[str]
    code: dict[str, Stamp]
    rows: dict[str, Any] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    _news: bool = False

    @classmethod
    def of(cls, overlays: Sequence[Catalogued], together: Collection[str], code: Mapping[str, Stamp]) -> RowMemo | None:
        """Read the memo of a selection of overlays. Without a file, or with a damaged one, it is empty.

        Args:
            overlays: what is tried alone.
            together: the ids of what is tried together.
            code: what was opened to find the overlays, from `vpatch.stamps.opened`.

        Returns:
            The memo; None if there is no cache.
        """
        ids = [item.id for item in overlays]
        name = sha256(json.dumps([ids, sorted(together), sources.current().fingerprint, surroundings()]).encode())
        now = {**code, **dict(_shipped(overlays))}
        try:
            memo = cls(cache := Cache(cache_folder()), name, ids, now)
            note = cache.note(VERDICTS, name, lambda: None) or {}
            both = dict(now)
            if _join(both, note["code"]) and unchanged(note["code"]):
                memo.rows, memo.code = dict(note["rows"]), both
                cache.touch(VERDICTS, name)
            return memo
        except Failure:
            return None
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
            return memo  # the note is missing, or has another format

    def recall(self, row: Row, asked: Iterable[str], read: Callable[[Collection[str]], FilesRead]) -> Row | None:
        """Return a row with what the overlays came to; None if any file that they asked for is another.

        Args:
            row: it has the files that overlays name.
            asked: their paths.
            read: reads more files of its vLLM.

        Raises:
            Failure: a file cannot be read.
        """
        tree = row.tree
        if tree is None or (about := self.rows.get(key := _key(tree.files, asked))) is None:
            return None
        try:
            check(about, _ROW)
            cells, problems = tuple(map(_cell, about["cells"])), tuple(map(_problem, about["problems"]))
        except (LookupError, TypeError, ValueError):
            return None
        if about["sought"]:
            more = read(about["sought"].keys())
            tree = replace(tree, files={**tree.files, **more.files}, received=tree.received + more.received)
        if hashes(tree.files, about["sought"]) != about["sought"] or [cell.verdict.id for cell in cells] != self.ids:
            return None
        self.used.add(key)
        return replace(row, tree=tree, cells=cells, problems=problems)

    def keep(self, row: Row, asked: Iterable[str], sought: Hashes) -> None:
        """Remember a row, `asked` for the files that overlays name; `sought` are others that they looked for."""
        problems = (*row.problems, *(problem for cell in row.cells for problem in cell.problems))
        if row.tree is None or any(problem.code in _PASSING for problem in problems):
            return
        about = {"cells": list(map(asdict, row.cells)), "problems": list(map(asdict, row.problems))}
        key = _key(row.tree.files, asked)
        self.rows[key] = {"sought": dict(sought), **about}
        self.used.add(key)
        self._news = True

    def write(self, code: Iterable[Mapping[str, Stamp]]) -> None:
        """Write what is new. A cache that cannot be written to is no failure: the next run tries all overlays again.

        Args:
            code: what worker processes opened and imported. If it changed during this run, nothing is written.
        """
        if self._news and all(_join(self.code, stamps) for stamps in code):
            newest = sorted(self.rows, key=self.used.__contains__)[-ROWS:]
            try:
                rows = {key: self.rows[key] for key in newest}
                self.cache.put_note(VERDICTS, self.name, {"code": self.code, "rows": rows})
                self.cache.prune(VERDICTS, MEMOS)
            except Failure:
                return


def _join(code: dict[str, Stamp], more: Mapping[str, Stamp]) -> bool:
    """Add stamps; return whether none contradicts another."""
    return all(code.setdefault(path, stamp) == stamp for path, stamp in more.items())


def _key(files: Mapping[str, bytes], asked: Iterable[str]) -> str:
    return sha256(json.dumps(hashes(files, asked)).encode())


def _shipped(overlays: Iterable[Catalogued]) -> Iterator[tuple[str, Stamp]]:
    """Yield the stamps of everything in the packages of overlays."""
    names = dict.fromkeys(item.point.module for item in overlays if item.point)
    for folder in (folder for name in names for folder in getattr(modules.get(name), "__path__", ())):
        yield from below(folder)


def _cell(about: Any) -> Cell:
    verdict = about["verdict"]
    return Cell(Verdict(verdict["id"], tuple(map(_part, verdict["parts"]))), tuple(map(_problem, about["problems"])))


def _part(about: Any) -> PartVerdict:
    several = {name: tuple(about[name]) for name in ("files", "notes")}
    problems = tuple(map(_problem, about["problems"]))
    return PartVerdict(**{**about, **several, "state": State(about["state"]), "problems": problems})


def _problem(about: Any) -> Problem:
    return Problem(**{**about, "code": Code(about["code"])})

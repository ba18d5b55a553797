"""What a worker process does: try overlays on one vLLM in memory, as `apply` and `revert` would change it."""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import parent_process
from pathlib import Path
from threading import Thread

from vpatch.core import sources
from vpatch.core.calls import module_files
from vpatch.core.catalogue import discover
from vpatch.core.engine import Engine, Read
from vpatch.core.marks import marks_in
from vpatch.core.overlay import COMPANIONS, Catalogued
from vpatch.core.sources import Sources
from vpatch.core.verdict import Changeset, PartVerdict, State, Verdict
from vpatch.errors import Code, Failure, Problem
from vpatch.matrix.memo import Hashes, hashes
from vpatch.matrix.verdicts import Cell
from vpatch.stamps import Stamp, opened
from vpatch.tree.apply import Writes, apply, revert
from vpatch.tree.verify import compiles


@dataclass(frozen=True)
class Together:
    """What holds only for several overlays together: the verdicts on those in conflict, by id, and other problems."""

    clashes: Mapping[str, Verdict]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class JobResult:
    """What a job found.

    Attributes:
        cells: of single overlays, by id.
        together: of several overlays together.
        sought: what it looked for beyond the files that its overlays name, with hashes: what their code calls may have
            moved there.
        code: what it opened and imported.
    """

    cells: Mapping[str, Cell]
    together: Together
    sought: Hashes
    code: Mapping[str, Stamp]


def start(given: Sources) -> None:
    """Prepare a worker process: it has the sources of its parent, and ends with it, however that ends."""

    def end_with_parent() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    sources.inherit(given)
    gc.disable()  # as in the main process
    Thread(target=end_with_parent, daemon=True).start()


def work(
    files: Mapping[str, bytes], ids: Collection[str], alone: Collection[str], together: Collection[str]
) -> JobResult:
    """Try overlays on the `files` of one vLLM: some `alone`, some `together`. `ids` are all overlays of this run."""
    sought = set[str]()

    def reading(named: Collection[str]) -> Read:
        def read(file: str) -> bytes | None:
            if file not in named and file.startswith("vllm/") and file.endswith(".py"):
                sought.add(file)
            return files.get(file)

        return read

    with opened() as code:
        engine = _engine(frozenset(ids))
        named = {item.id: named_by(item, engine) for item in engine.overlays}
        cells = {
            item.id: try_one(reading(named[item.id]), item, engine) for item in engine.overlays if item.id in alone
        }
        chosen = [item for item in engine.overlays if item.id in together]
        both = try_together(reading({file for item in chosen for file in named[item.id]}), chosen, engine)
        engine.forget(set(files.values()))  # the next release may have many of the same files
        _compiled.cache_clear()
    return JobResult(cells, both, hashes(files, sought), code)


@cache
def _engine(ids: frozenset[str]) -> Engine:
    return Engine(item for item in discover() if item.id in ids)


def named_by(item: Catalogued, engine: Engine) -> tuple[str, ...]:
    """Return the files that an overlay of an engine names, the others that these modules may be in, and all companions.

    Its code may import any companion.
    """
    files = (*Engine([item]).files, *(file for file in engine.files if file.startswith(COMPANIONS)))
    modules = (file.removesuffix("/__init__.py").removesuffix(".py") for file in files if file.endswith(".py"))
    return tuple(dict.fromkeys((*files, *(form for module in modules for form in module_files(module)))))


def try_one(read: Read, item: Catalogued, engine: Engine) -> Cell:
    """Judge a pristine vLLM by one overlay of the engine, and check that the overlay does what it promises."""
    try:
        changeset, problems = _try(read, [item], engine)
        return Cell(changeset.before[0], problems)
    except (Failure, RuntimeError) as error:
        failed = Problem("overlay failed", item.id, str(error), code=Code.OVERLAY_FAILED)
        problems = error.problems if isinstance(error, Failure) else (failed,)
    try:
        return Cell(engine.status(read, [item])[0], problems)
    except Failure:  # even its state cannot be computed
        parts = ((part.name, State.DRIFTED, str(problems[0]), part.files) for part in item.overlay.parts)
        return Cell(Verdict(item.id, tuple(PartVerdict(*part, problems=problems[:1]) for part in parts)), problems)


def try_together(read: Read, overlays: Sequence[Catalogued], engine: Engine) -> Together:
    """Find the conflicts of overlays that are selected together, and their other problems.

    Overlays that have problems alone are left out: `try_one` reports those.
    """
    try:
        changeset, problems = _try(read, overlays, engine)
        clashes = {v.id: v for v in changeset.before if v.state is State.CONFLICT}
    except (Failure, RuntimeError) as error:
        names = ", ".join(item.id for item in overlays)
        problems = (Problem("do not go together", names, str(error), code=Code.NOT_TOGETHER),)
        clashes = {}
    if not problems:
        return Together({}, ())
    alone = {item.id for item in overlays if try_one(read, item, engine).problems}
    rest = [item for item in overlays if item.id not in alone | clashes.keys()]
    if len(rest) == len(overlays):
        return Together({}, problems)
    others = try_together(read, rest, engine)
    return Together({**clashes, **others.clashes}, others.problems)


def _try(read: Read, overlays: Sequence[Catalogued], engine: Engine) -> tuple[Changeset, tuple[Problem, ...]]:
    """Apply, compile, apply again and revert."""
    tree = _MemoryTree(read)
    changeset, writes = apply(tree, overlays, engine)
    if not writes.changed:
        return changeset, changeset.problems
    problems = [problem for file in writes.changed for problem in _compiled(file, tree.read(file) or b"")]
    again, rewritten = apply(tree, overlays, engine)
    if rewritten.changed:
        names = ", ".join(item.id for item in overlays)
        cause = f"the second run writes {', '.join(rewritten.changed)}"
        problems.append(Problem("not idempotent", names, cause, code=Code.NOT_IDEMPOTENT))
    problems.extend(again.problems)
    marks = (marks_in(read(file) or b"") for item in overlays for file in item.overlay.files)
    if not any(marks):  # else the originals are elsewhere
        problems.extend(_revert(tree, changeset, overlays, engine))
    return changeset, (*changeset.problems, *problems)


@cache
def _compiled(file: str, data: bytes) -> Sequence[Problem]:
    """Compile a module, once for overlays that make the same of it alone and together."""
    return compiles(file, data)


def _revert(tree: _MemoryTree, changes: Changeset, overlays: Sequence[Catalogued], engine: Engine) -> Iterator[Problem]:
    """Revert one overlay while the others stay, and then all of them."""
    applied = {verdict.id for verdict in changes.after if verdict.state is State.APPLIED}
    try:
        revert(tree, overlays, [next(item for item in overlays if item.id in applied)], engine)
        revert(tree, overlays, None)
    except Failure as failure:
        yield from failure.problems
        return
    for file in changes.files:
        if tree.read(file) != tree.pristine(file):
            yield Problem("not reversible", file, "it stays changed", code=Code.NOT_REVERSIBLE)


@dataclass
class _MemoryTree:
    """A vLLM whose changed files are kept in memory: a `Snapshot` that is its own tree."""

    pristine: Read
    root: Path = Path("memory")
    version: str | None = None
    now: dict[str, bytes | None] = field(default_factory=dict)
    originals: dict[str, bytes | None] = field(default_factory=dict)
    unrecognized: Collection[str] = ()

    @property
    def tree(self) -> _MemoryTree:
        return self

    def snapshot(self) -> _MemoryTree:
        return self

    def refresh(self) -> bool:
        return False  # no other program changes it

    def lock(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self, path: str) -> bytes | None:
        return self.now[path] if path in self.now else self.pristine(path)

    def decide(
        self,
        desired: Mapping[str, bytes],
        note: object,
        *,
        on_edits: bool,
        made: Mapping[str, bytes],
        patches: Mapping[str, bytes],
        discard: bool = False,
    ) -> Writes:
        new = {**self.originals, **desired}
        files = {file: data for file, data in sorted(new.items()) if self.read(file) != data}

        def carry_out() -> None:
            for file in desired:
                self.originals.setdefault(file, self.read(file))
            self.now.update(new)

        return Writes(tuple(files), work=bool(files), carry_out=carry_out, files=files)

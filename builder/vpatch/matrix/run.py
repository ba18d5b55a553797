"""The whole matrix: sources are read several at a time, and what is in them is looked at by several processes."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeAlias

from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.errors import Failure, Problem
from vpatch.matrix.verdicts import Cell, Matrix, Row, Source
from vpatch.matrix.worker import Looked, look, start

READERS = 8  # sources that are read at a time
WORKERS = 4  # processes at most: each takes some 100 MiB

Key: TypeAlias = tuple[str | bytes, ...]


def run(
    sources: Sequence[Source],
    overlays: Sequence[Catalogued],
    together: Collection[str],
    told: Callable[[float], None],
) -> Matrix:
    """Compute the matrix.

    Args:
        sources: the vLLMs, in the order of the rows.
        overlays: the columns.
        together: the ids of those that are tried together, too.
        told: hears how far it is, from 0 to 1.

    Raises:
        Failure: a process that looks at them dies.
    """
    columns = _Columns({item.id: Engine([item]).files for item in overlays}, frozenset(together))
    with _looking(len(sources)) as pool:
        asked: dict[Key, Future[Looked]] = {}
        keys: dict[Future[Row], Mapping[str, Key]] = {}
        reading = _reading(sources, Engine(overlays).files)
        for done, future in enumerate(as_completed(reading), 1):
            told(done / len(sources) / 2)
            if (tree := future.result().tree) is not None:
                keys[future] = columns.keys(tree.files)
                columns.ask(tree.files, keys[future], pool, asked)
        rows = []
        for future in reading:
            row = future.result()
            rows.append(columns.filled(row, keys[future], asked) if row.tree else row)
            told(0.5 + len(rows) / len(sources) / 2)
    return Matrix(tuple(overlays), tuple(rows))


def _reading(sources: Sequence[Source], files: Collection[str]) -> list[Future[Row]]:
    """Begin to read the sources; give the rows to come, without cells."""
    rows: list[Future[Row]] = [Future() for _ in sources]
    todo = SimpleQueue[tuple[Source, Future[Row]]]()
    for pair in zip(sources, rows, strict=True):
        todo.put(pair)
    for _ in range(min(READERS, len(sources))):
        # Those of an executor would be waited for after an interrupt, and a server can be silent for long.
        Thread(target=_read, args=(todo, files), daemon=True).start()
    return rows


def _read(todo: SimpleQueue[tuple[Source, Future[Row]]], files: Collection[str]) -> None:
    with suppress(Empty):
        while True:
            source, row = todo.get_nowait()
            try:
                row.set_result(Row(source.name, source.read(files)))
            except Failure as failure:
                row.set_result(Row(source.name, None, problems=failure.problems))
            except BaseException as error:
                row.set_exception(error)


@dataclass(frozen=True)
class _Columns:
    """What is asked of every row. Of rows whose bytes are equal, as far as an overlay reads them, one is looked at."""

    files: Mapping[str, tuple[str, ...]]
    together: frozenset[str]

    def keys(self, files: Mapping[str, bytes]) -> dict[str, Key]:
        """Give what the verdict on each overlay rests on, and that on those together, as ""."""
        hashes = {file: hashlib.sha256(data).digest() for file, data in files.items()}
        keys: dict[str, Key] = {
            name: (name, *(hashes.get(file, b"") for file in wanted)) for name, wanted in self.files.items()
        }
        return keys | {"": ("", *(part for name in sorted(self.together) for part in keys[name]))}

    def ask(
        self, files: Mapping[str, bytes], keys: Mapping[str, Key], pool: Executor, asked: dict[Key, Future[Looked]]
    ) -> None:
        """Begin to look at whatever nobody looks at yet."""
        new = {name: key for name, key in keys.items() if key not in asked}
        if new:
            together = self.together if "" in new else frozenset()
            with _uninterrupted():
                job = pool.submit(look, files, tuple(self.files), new.keys() - {""}, together)
            asked.update(dict.fromkeys(new.values(), job))

    def filled(self, row: Row, keys: Mapping[str, Key], asked: Mapping[Key, Future[Looked]]) -> Row:
        """Give the row with its cells, when they are there."""
        cells = [asked[keys[name]].result().cells[name] for name in self.files]
        both = asked[keys[""]].result().together
        clashing = {
            cell.verdict.id: Cell(verdict, tuple(dict.fromkeys((*verdict.problems, *cell.problems))))
            for cell in cells
            if (verdict := both.clashes.get(cell.verdict.id))
        }
        return replace(row, cells=tuple(clashing.get(c.verdict.id, c) for c in cells), problems=both.problems)


@contextmanager
def _looking(rows: int) -> Iterator[Executor]:
    """Give the processes that look; on the way out of a failure nobody waits for what was not begun."""
    workers = min(WORKERS, len(os.sched_getaffinity(0)), max(rows, 1))
    context = get_context("spawn")  # forks and threads do not go together
    with ProcessPoolExecutor(workers, context, initializer=start) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            for process in active_children():  # else all that was begun, and asked for, would be waited for
                process.kill()
            raise
        except BrokenProcessPool as error:
            cause = "it was killed; is there memory enough?"
            raise Failure(Problem("cannot go on", "a process that looks at overlays", cause)) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Start processes that no interrupt reaches: it is for this one, which ends them; here it comes a little later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

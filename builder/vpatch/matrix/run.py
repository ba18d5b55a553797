"""Compute the whole matrix: threads read the sources, and worker processes try the overlays on them."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import active_children, get_context
from threading import Semaphore, Thread

from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.errors import Failure, Problem
from vpatch.matrix.verdicts import Cell, Matrix, Row, RowSource
from vpatch.matrix.worker import JobResult, start, work

READERS = 8  # sources that are read at a time
WORKERS = 4  # processes at most: each takes some 100 MiB

Key = tuple[str | bytes, ...]  # what a verdict depends on: an overlay's id, and hashes of the files that it reads


def run(
    sources: Sequence[RowSource],
    overlays: Sequence[Catalogued],
    together: Collection[str],
    progress: Callable[[float], object],
) -> Matrix:
    """Compute the matrix of vLLMs, its rows, and overlays, its columns.

    The overlays whose ids are in `together` are tried together, too. `progress` accepts the share done, from 0 to 1.
    A worker process that dies is a `Failure`.
    """
    with _worker_pool(len(sources)) as pool:
        jobs = _Jobs(pool, {item.id: Engine([item]).files for item in overlays}, frozenset(together))
        keys: dict[Future[Row], Mapping[str, Key]] = {}
        reading = _begin_reading(sources, Engine(overlays).files)
        for done, future in enumerate(as_completed(reading), 1):
            progress(done / len(sources) / 2)
            if (tree := future.result().tree) is not None:
                keys[future] = jobs.begin(tree.files)
        rows = []
        for source, future in zip(sources, reading, strict=True):
            row = future.result()
            rows.append(jobs.filled(row, source, keys[future]) if row.tree else row)
            progress(0.5 + len(rows) / len(sources) / 2)
    return Matrix(tuple(overlays), tuple(rows))


def _begin_reading(sources: Sequence[RowSource], files: Collection[str]) -> list[Future[Row]]:
    """Start a thread for each source; return the future rows, without cells."""
    turn = Semaphore(READERS)

    def read(source: RowSource, row: Future[Row]) -> None:
        with turn:
            try:
                row.set_result(Row(source.name, source.read(files)))
            except Failure as failure:
                row.set_result(Row(source.name, None, problems=failure.problems))
            except BaseException as error:
                row.set_exception(error)

    rows: list[Future[Row]] = [Future() for _ in sources]
    for pair in zip(sources, rows, strict=True):
        # After an interrupt, Python would wait for an executor's threads, and a server can be silent for long.
        Thread(target=read, args=pair, daemon=True).start()
    return rows


@dataclass(frozen=True)
class _Jobs:
    """The jobs of worker processes. Of rows with equal bytes, as far as an overlay reads them, one is tried."""

    pool: Executor
    files: Mapping[str, tuple[str, ...]]  # by overlay
    together: frozenset[str]
    begun: dict[Key, Future[JobResult]] = field(default_factory=dict)

    def begin(self, files: Mapping[str, bytes], sought: Collection[str] = ()) -> Mapping[str, Key]:
        """Begin what no job does yet; return the keys of the verdicts by overlay, and on several together by "".

        Args:
            files: the files of a row.
            sought: files of it that a job looked for, and no overlay names.
        """
        hashes = {file: hashlib.sha256(data).digest() for file, data in files.items()}
        keys: dict[str, Key] = {
            name: (name, *sought, *(hashes.get(file, b"") for file in (*wanted, *sought)))
            for name, wanted in self.files.items()
        }
        keys[""] = ("", *(part for name in sorted(self.together) for part in keys[name]))
        new = {name: key for name, key in keys.items() if key not in self.begun}
        if new:
            together = self.together if "" in new else frozenset()
            # An interrupt is for this process, which ends those that it starts here; meanwhile it waits.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                job = self.pool.submit(work, files, tuple(self.files), new.keys() - {""}, together)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self.begun.update(dict.fromkeys(new.values(), job))
        return keys

    def filled(self, row: Row, source: RowSource, keys: Mapping[str, Key]) -> Row:
        """Wait for the row's jobs; return it with its cells. What they looked for is read, and they begin anew."""
        results = {name: self.begun[key].result() for name, key in keys.items()}
        sought = frozenset().union(*(each.sought for each in results.values()))
        if row.tree and sought - row.tree.files.keys():
            try:
                more = source.read(sought)
            except Failure as failure:
                return Row(row.name, None, problems=failure.problems)
            if more.files.keys() - row.tree.files.keys():
                files = {**row.tree.files, **more.files}
                keys = self.begin(files, sorted(sought))
                tree = replace(row.tree, files=files, received=row.tree.received + more.received)
                return self.filled(replace(row, tree=tree), source, keys)
        cells = [results[name].cells[name] for name in self.files]
        both = results[""].together
        clashing = {
            cell.verdict.id: Cell(verdict, tuple(dict.fromkeys((*verdict.problems, *cell.problems))))
            for cell in cells
            if (verdict := both.clashes.get(cell.verdict.id))
        }
        return replace(row, cells=tuple(clashing.get(c.verdict.id, c) for c in cells), problems=both.problems)


def _stop_writing(pool: Executor) -> None:
    """End the writing of jobs whose readers have ended, which Python before 3.11.5 would wait for (gh-94777)."""
    if sys.version_info < (3, 11, 5) and (queue := getattr(pool, "_call_queue", None)):
        queue._reader.close()


@contextmanager
def _worker_pool(rows: int) -> Iterator[Executor]:
    """Start worker processes; after a failure, jobs that have not begun are dropped."""
    workers = min(WORKERS, len(os.sched_getaffinity(0)), max(rows, 1))
    context = get_context("spawn")  # forks and threads do not go together
    pool = ProcessPoolExecutor(workers, context, initializer=start)
    try:
        yield pool
    except KeyboardInterrupt:
        for process in active_children():  # else the pool would wait for all jobs
            process.kill()
        _stop_writing(pool)
        raise
    except BrokenProcessPool as error:
        _stop_writing(pool)
        cause = "it was killed; is there memory enough?"
        raise Failure(Problem("cannot go on", "a process that looks at overlays", cause)) from error
    finally:
        # Wait: if Python ends together with the pool's thread, it prints "OSError: handle is closed" after our message.
        pool.shutdown(cancel_futures=True)

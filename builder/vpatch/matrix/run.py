"""Compute the whole matrix: threads read the sources, and worker processes try the overlays on them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import active_children, get_context
from threading import Semaphore, Thread
from types import MappingProxyType

from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.core.sources import current
from vpatch.errors import Failure, Problem
from vpatch.matrix.memo import Hashes, RowMemo, hashes
from vpatch.matrix.verdicts import Cell, Matrix, Row, RowSource
from vpatch.matrix.worker import JobResult, named_by, start, work
from vpatch.stamps import Stamp

READERS = 8  # sources that are read at a time
WORKERS = 4  # processes at most: each takes some 100 MiB

Key = tuple[object, ...]  # what a verdict depends on: an overlay's id, and hashes of the files that it reads


def run(
    sources: Sequence[RowSource],
    overlays: Sequence[Catalogued],
    together: Collection[str],
    progress: Callable[[float], object],
    memo: RowMemo | None = None,
) -> Matrix:
    """Compute the matrix of vLLMs, its rows, and overlays, its columns.

    The overlays whose ids are in `together` are tried together, too. `progress` accepts the share done, from 0 to 1.
    Rows that `memo` has are not tried. A worker process that dies is a `Failure`.
    """
    engine = Engine(overlays)
    named = {item.id: named_by(item, engine) for item in overlays}
    asked = {file for files in (engine.files, *named.values()) for file in files}
    with _worker_pool(len(sources)) as pool:
        jobs = _Jobs(pool, named, frozenset(together))
        keys: dict[Future[Row], Mapping[str, Key]] = {}
        reading = _begin_reading(sources, asked, memo)
        for done, future in enumerate(as_completed(reading), 1):
            progress(done / len(sources) / 2)
            if (tree := (row := future.result()).tree) is not None and not row.cells:
                keys[future] = jobs.begin(tree.files)
        rows = []
        for source, future in zip(sources, reading, strict=True):
            row = future.result()
            if future in keys:
                row, sought = jobs.filled(row, source, keys[future])
                if memo:
                    memo.keep(row, asked, sought)
            rows.append(row)
            progress(0.5 + len(rows) / len(sources) / 2)
        if memo:
            memo.write(jobs.code)
    return Matrix(tuple(overlays), tuple(rows))


def _begin_reading(sources: Sequence[RowSource], files: Collection[str], memo: RowMemo | None) -> list[Future[Row]]:
    """Start a thread for each source; return the future rows, without cells unless the memo has them."""
    turn = Semaphore(READERS)

    def read(source: RowSource, row: Future[Row]) -> None:
        with turn:
            try:
                found = Row(source.name, source.read(files))
                row.set_result((memo and memo.recall(found, files, source.read)) or found)
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

    def begin(self, files: Mapping[str, bytes], sought: Hashes = MappingProxyType({})) -> Mapping[str, Key]:
        """Begin what no job does yet; return the keys of the verdicts by overlay, and on several together by "".

        Args:
            files: the files of a row.
            sought: what a job looked for, and no overlay names, as the row has it.
        """
        found = hashes(files, {file for wanted in self.files.values() for file in wanted})
        keys: dict[str, Key] = {
            name: (name, *sought.items(), *(found[file] for file in wanted)) for name, wanted in self.files.items()
        }
        keys[""] = ("", *sought.items(), *(part for name in sorted(self.together) for part in keys[name]))
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

    def filled(
        self, row: Row, source: RowSource, keys: Mapping[str, Key], known: Hashes = MappingProxyType({})
    ) -> tuple[Row, Hashes]:
        """Wait for the row's jobs; return it with its cells, and with what they looked for.

        That is read, and jobs that saw something else, or of an equal row that has something else, begin anew.
        """
        if row.tree is None:
            return row, known
        tree, results = row.tree, {name: self.begun[key].result() for name, key in keys.items()}
        seen = {pair for each in results.values() for pair in each.sought.items()}
        sought = {file for file, _ in seen} | known.keys()
        try:
            more = source.read(unread) if (unread := sought - tree.files.keys() - known.keys()) else None
        except Failure as failure:
            return Row(row.name, None, problems=failure.problems), known
        if more:
            tree = replace(tree, files={**tree.files, **more.files}, received=tree.received + more.received)
        now = hashes(tree.files, sought)
        if not seen <= now.items():
            return self.filled(replace(row, tree=tree), source, self.begin(tree.files, now), now)
        cells = [results[name].cells[name] for name in self.files]
        both = results[""].together
        clashing = {
            cell.verdict.id: Cell(verdict, tuple(dict.fromkeys((*verdict.problems, *cell.problems))))
            for cell in cells
            if (verdict := both.clashes.get(cell.verdict.id))
        }
        done = tuple(clashing.get(c.verdict.id, c) for c in cells)
        return replace(row, tree=tree, cells=done, problems=both.problems), now

    @property
    def code(self) -> Iterator[Mapping[str, Stamp]]:
        """What each job opened and imported."""
        return (job.result().code for job in dict.fromkeys(self.begun.values()))


def _stop_writing(pool: Executor) -> None:
    """End the writing of jobs whose readers have ended, which Python before 3.11.5 would wait for (gh-94777)."""
    if sys.version_info < (3, 11, 5) and (queue := getattr(pool, "_call_queue", None)):
        queue._reader.close()


@contextmanager
def _worker_pool(rows: int) -> Iterator[Executor]:
    """Start worker processes; after a failure, jobs that have not begun are dropped."""
    workers = min(WORKERS, len(os.sched_getaffinity(0)), max(rows, 1))
    context = get_context("spawn")  # forks and threads do not go together
    pool = ProcessPoolExecutor(workers, context, initializer=partial(start, current()))
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

"""The power of the tests: seeded mutants of `builder/`, each run against the tests that cover its line.

    python -m tests.mutation --seed 16 --count 60 --first FILE --deep FILE --record docs/test-power.md

FILE is coverage's data of one tier, recorded with a context for each test; `FILE-times.xml`, if it is there, has the
times. tests/README.md has the commands that record them.

The mutants are our own (`operators.py`). mutmut skips decorated functions, here every command and property, and code
outside functions, and selects a mutant by a variable, which tests that clear the environment of a process would lose.
cosmic-ray makes every mutant and runs one command for each. Neither draws by a seed, or knows two tiers.

A mutant is killed if a test fails that passes without it, or does not end. What runs in no test, as a module's own
statements, is tested by the tests of the module and of its room.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from tests.mutation.copies import Copy
from tests.mutation.operators import Mutant, compiles, mutants
from tests.mutation.record import Record, key, read
from tests.paths import ROOT

MINUTES = {"first": 5, "deep": 5}
"""How long a mutant's tests may take in each tier, by the times recorded: the slowest are left out."""


@dataclass(frozen=True)
class Result:
    """What became of a mutant: the tier that killed it ("" if none did), and the test."""

    mutant: Mutant
    tier: str
    test: str
    tests: int


def draw(project: Path, records: Iterable[Record], count: int, seed: int, only: str = "") -> list[Mutant]:
    """Draw mutants of lines that ran, evenly over the code, so that each module has its share."""
    ran = list(records)
    places: dict[tuple[str, int, int], list[Mutant]] = {}
    for path in sorted((project / "builder/vpatch").rglob("*.py")):
        file = path.relative_to(project).as_posix()
        for mutant in mutants(file, path.read_text()) if only in file else ():
            if any(record.ran(file, mutant.lines) for record in ran):
                places.setdefault((file, mutant.start, mutant.end), []).append(mutant)
    rng = random.Random(seed)  # noqa: S311 - it is to be repeatable
    spots = list(places.values())
    step, first = len(spots) / count, rng.random()
    chosen = (spots[int((first + index) * step) :] for index in range(min(count, len(spots))))
    return [rng.choice(next(filter(None, (_valid(project, there) for there in rest)))) for rest in chosen]


def _valid(project: Path, there: list[Mutant]) -> list[Mutant]:
    return [one for one in there if compiles(one.apply((project / one.file).read_bytes()))]


class Trial:
    """Runs mutants, in as many copies of the project as run at a time."""

    def __init__(self, project: Path, records: Mapping[str, Record], scratch: Path, jobs: int) -> None:
        self.records = records
        self.pristine, self.lock = Copy.make(project, scratch / "pristine"), Lock()
        self.copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(jobs):
            self.copies.put(Copy.make(project, scratch / f"copy{number}"))

    def result(self, mutant: Mutant) -> Result:
        """Run the first tier's tests of a mutant, and then the other's if it lives."""
        data, copy = (self.pristine.root / mutant.file).read_bytes(), self.copies.get()
        copy.put(mutant, mutant.apply(data))
        known: set[str] = set()
        try:
            for tier, record in self.records.items():
                chosen = record.tests(mutant.file, mutant.lines, 60 * MINUTES[tier])
                tests = [test for test in chosen if test not in known]
                known.update(tests)
                if killer := self._killer(copy, tests, record):
                    return Result(mutant, tier, killer, len(known))
            return Result(mutant, "", "", len(known))
        finally:
            copy.put(mutant, data)
            self.copies.put(copy)

    def _killer(self, copy: Copy, tests: list[str], record: Record) -> str:
        while tests:
            limit = 300 + 5 * sum(record.seconds.get(key(test), 1) for test in tests)
            outcome = copy.run(tests, limit)
            if not outcome.failed:
                return ""
            if outcome.hung:
                return "(time)"
            # A test, a module that cannot be imported, or nothing, if what all tests need cannot.
            failed = next((test for test in tests if test.startswith(outcome.test)), tests[0])
            with self.lock:
                if self.pristine.passes(failed):
                    return outcome.test or "(import)"
            tests = [test for test in tests if test != failed]
        return ""


def table(results: list[Result]) -> Iterator[str]:
    """Render the results as Markdown."""
    tiers = [result.tier for result in results]
    first, deep, alive = (tiers.count(tier) for tier in ("first", "deep", ""))
    yield f"{len(results)} mutants: the first tier killed {first}, the deep tier {deep} of the rest; {alive} survived."
    yield f"The first tier kills {first / max(first + deep, 1):.0%} of what both tiers kill.\n"
    yield "| where | change | before | after | killed by | test |"
    yield "|---|---|---|---|---|---|"
    for one in sorted(results, key=lambda one: (one.mutant.file, one.mutant.line)):
        mutant = one.mutant
        cells = [f"{mutant.file.removeprefix('builder/')}:{mutant.line}", mutant.operator]
        cells += [_cell(mutant.before), _cell(mutant.after), one.tier or "**none**"]
        cells += [_cell(one.test) if one.test else f"none of {one.tests}"]
        yield f"| {' | '.join(cells)} |"


def _cell(code: str) -> str:
    line = " ".join(code.split()).replace("|", "\\|").replace("`", "'")
    return f"`{line if len(line) <= 70 else line[:67] + '...'}`" if line else ""


def main() -> int:
    """Draw mutants, run the tests, and print who killed which."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--first", type=Path, required=True, help="coverage data of the first tier")
    parser.add_argument("--deep", type=Path, help="coverage data of the deep tier")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutate only files that have TEXT in their path")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--record", type=Path, help="write the table to this file")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    options = parser.parse_args()
    records = {tier: _read(path) for tier in ("first", "deep") if (path := getattr(options, tier))}
    drawn = draw(ROOT, records.values(), options.count, options.seed, options.only)
    results = []
    if options.list:
        results = [Result(mutant, "", "", 0) for mutant in drawn]
    else:
        with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ThreadPoolExecutor(options.jobs) as pool:
            trial = Trial(ROOT, records, Path(scratch), options.jobs)
            for future in as_completed([pool.submit(trial.result, one) for one in drawn]):
                results.append(result := future.result())
                print(*list(table([result]))[-1:], flush=True)  # noqa: T201
    lines = [*table(results)]
    print("", *lines, sep="\n")  # noqa: T201
    if options.record:
        command = f"python -m tests.mutation --seed {options.seed} --count {options.count} --first FILE --deep FILE"
        head = f"# Test power\n\n{HEAD}\n\n    {command}\n\n"
        options.record.write_text(head + "\n".join(lines) + "\n")
    return 0


HEAD = f"""Do vpatch's tests notice a mistake in vpatch? A mutant is a small mistake in `builder/`, made alone. It runs
against the tests that cover its line, fastest first: at most {MINUTES["first"]} minutes of the first tier, then at most
{MINUTES["deep"]} minutes of the second. [tests/README.md](../tests/README.md#what-the-tests-notice) has the commands
that record what covers a line. To count again:"""


def _read(path: Path) -> Record:
    if not path.is_file():
        raise SystemExit(f"no such record: {path}; tests/README.md has the commands that make one")
    times = path.with_name(f"{path.name}-times.xml")
    return read(path, times if times.exists() else None)


if __name__ == "__main__":
    raise SystemExit(main())

"""What a run of the tests recorded: the tests that run each line, and how long each test takes."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import mean

from coverage import CoverageData


@dataclass
class Record:
    """The tests of one tier by file and line.

    `lines` has every line that ran, also those of no test, as a module's own statements, which run when it is imported.
    """

    lines: dict[str, dict[int, frozenset[str]]] = field(default_factory=dict)
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)

    def ran(self, file: str, lines: tuple[int, int]) -> bool:
        """Whether one of these lines ran."""
        known = self.lines.get(file, {})
        return any(line in known for line in range(lines[0], lines[1] + 1))

    def tests(self, file: str, lines: tuple[int, int], seconds: float = math.inf) -> list[str]:
        """Return the tests that run these lines, fastest first, as many as take this time together.

        If no test runs them, these are the tests that run any line of the module, and those in the folder that tests
        its package.
        """
        known = self.lines.get(file, {})
        found = {test for line in range(lines[0], lines[1] + 1) for test in known.get(line, ())}
        if not found:
            room = f"tests/{Path(file).parts[2]}/"
            found = {test for tests in known.values() for test in tests}
            found |= {test for test in self._all if test.startswith(room)}
        costs = {test: self._cost(test) for test in found}
        order = sorted(found, key=lambda test: (costs[test], test))
        spent = accumulate(costs[test] for test in order)
        return [test for test, total in zip(order, spent, strict=True) if total <= seconds]

    def _cost(self, test: str) -> float:
        """Return the seconds of a test, and at least the average of its file: its first test has the set-up of all."""
        return max(self.seconds.get(key(test), 0), self._average.get(key(test)[0], 0))

    @cached_property
    def _average(self) -> dict[str, float]:
        times: dict[str, list[float]] = defaultdict(list)
        for (file, _), seconds in self.seconds.items():
            times[file].append(seconds)
        return {file: mean(each) for file, each in times.items()}

    @property
    def _all(self) -> set[str]:
        return {test for lines in self.lines.values() for tests in lines.values() for test in tests}


def read(data: Path, durations: Path | None) -> Record:
    """Read a coverage data file recorded with `--cov-context=test`, and the `--junitxml` of the same run."""
    record = Record()
    coverage = CoverageData(str(data))
    coverage.read()
    tests = _Tests(coverage.measured_contexts())
    for path in sorted(coverage.measured_files()):
        before, found, inside = path.rpartition("/builder/vpatch/")
        if not found or "/pytest-of-" in before:
            continue
        lines = record.lines.setdefault(f"builder/vpatch/{inside}", defaultdict(frozenset))
        for line, contexts in coverage.contexts_by_lineno(path).items():
            lines[line] |= tests.of(contexts)
    if durations:
        for case in ET.parse(durations).iter("testcase"):  # noqa: S314 - our own file
            record.seconds[str(case.get("classname")), str(case.get("name"))] = float(case.get("time") or 0)
    return record


class _Tests:
    """The tests that contexts name.

    What a fixture runs for a module or a session has the name of the first test that needs it: it stands for all tests
    of the file.
    """

    def __init__(self, contexts: Iterable[str]) -> None:
        self.files: dict[str, set[str]] = defaultdict(set)
        self._of: dict[frozenset[str], frozenset[str]] = {}  # most lines of a function have the same
        for context in contexts:
            if test := context.rpartition("|")[0]:
                self.files[_file(test)].add(test)

    def of(self, contexts: Iterable[str]) -> frozenset[str]:
        key = frozenset(contexts)
        if key not in self._of:
            named = [(test, phase) for test, _, phase in (context.rpartition("|") for context in key) if test]
            shared = (self.files[_file(test)] for test, phase in named if phase == "setup")
            self._of[key] = frozenset({test for test, _ in named}.union(*shared))
        return self._of[key]


def _file(test: str) -> str:
    return test.partition("::")[0]


def key(test: str) -> tuple[str, str]:
    """Return the class name and the name that JUnit's format gives to a pytest node."""
    path, _, rest = test.partition("::")
    *classes, name = rest.partition("[")[0].split("::")
    parameters = rest[len(rest.partition("[")[0]) :]
    return ".".join([path.removesuffix(".py").replace("/", "."), *classes]), name + parameters

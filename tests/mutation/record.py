"""What a run of the tests recorded: the tests that run each line, and how long each test takes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from coverage import CoverageData


@dataclass
class Record:
    """The tests of one tier by file and line.

    `lines` has every line that ran, also those that no test ran in its own process: a module's own statements, which
    run when the first test imports it, and what only runs in processes that a test started.
    """

    lines: dict[str, dict[int, frozenset[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def ran(self, file: str, lines: tuple[int, int]) -> bool:
        """Whether one of these lines ran."""
        known = self.lines.get(file, {})
        return any(line in known for line in range(lines[0], lines[1] + 1))

    def tests(self, file: str, lines: tuple[int, int]) -> list[str]:
        """Return the tests that run these lines, fastest first.

        If no test runs them in its own process, these are the tests that run any line of the module, and those in the
        folder that tests its package.
        """
        known = self.lines.get(file, {})
        found = {test for line in range(lines[0], lines[1] + 1) for test in known.get(line, ())}
        if not found:
            room = f"tests/{Path(file).parts[2]}/"
            found = {test for tests in known.values() for test in tests}
            found |= {test for test in self._all if test.startswith(room)}
        return sorted(found, key=lambda test: (self.seconds.get(key(test), 0), test))

    @property
    def _all(self) -> set[str]:
        return {test for lines in self.lines.values() for tests in lines.values() for test in tests}


def read(data: Path, durations: Path | None) -> Record:
    """Read a coverage data file recorded with `--cov-context=test`, and the `--junitxml` of the same run."""
    record = Record()
    coverage = CoverageData(str(data))
    coverage.read()
    for path in sorted(coverage.measured_files()):
        before, found, inside = path.rpartition("/builder/vpatch/")
        if not found or "/pytest-of-" in before:
            continue
        lines = record.lines.setdefault(f"builder/vpatch/{inside}", defaultdict(frozenset))
        for line, contexts in coverage.contexts_by_lineno(path).items():
            lines[line] |= _tests(contexts)
    if durations:
        for case in ET.parse(durations).iter("testcase"):  # noqa: S314 - our own file
            record.seconds[f"{case.get('classname')}.{case.get('name')}"] = float(case.get("time") or 0)
    return record


def _tests(contexts: Iterable[str]) -> frozenset[str]:
    return frozenset(context.rpartition("|")[0] for context in contexts if context.rpartition("|")[0])


def key(test: str) -> str:
    """Return the name that JUnit's format gives to a pytest node."""
    path, _, rest = test.partition("::")
    *classes, name = rest.partition("[")[0].split("::")
    parameters = rest[len(rest.partition("[")[0]) :]
    return ".".join([path.removesuffix(".py").replace("/", "."), *classes, name]) + parameters

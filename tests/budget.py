"""What the first tier may cost: CPU seconds, counted in parses of fixed modules by the same processes meanwhile.

Seconds alone would fail on a slow or busy machine and hide a slow test on a fast one. Each run of the whole first tier
prints the figure and its dearest files; with `CI` in the environment it fails above a limit. What the limit is for: a
newcomer waits for these tests. A test that costs more than it shows belongs to the deep tier.

Of one test, user time counts alone. The system's time depends on what its caches hold: the same test took 0.2 s of it,
and 4.7 s after a break. Over the whole tier that evens out.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import mean
from typing import TYPE_CHECKING

import libcst
import pytest

from tests.releases import tree_of

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

DEAREST = 20
LAST = "the last test of each worker, with the ends of engine and registry"
MODULES = "vllm/v1/attention/backends/mla/*.py"
"""The modules of 0.20.2 whose parse is the unit: 16 of them, 210 kB, about half a second."""
EVERY = 60.0
"""Seconds between two parses of a process, which then take a hundredth of its time."""


@dataclass(frozen=True)
class Limits:
    """How many parses the tests may cost: all together with what starts them, and one test."""

    whole: float
    test: float


LIMITS = Limits(whole=1_400, test=45)
TRACED = Limits(whole=2_100, test=45)
"""The limits where coverage is measured, which traces each call."""
DEEP = Limits(whole=math.inf, test=math.inf)
"""The deep tier has none of these; what it costs is printed."""


@cache
def _texts() -> Sequence[bytes]:
    return [path.read_bytes() for path in sorted(tree_of("0.20.2").glob(MODULES))]


def parse_seconds() -> float:
    """Return the CPU seconds of one parse, here and now."""
    texts, before = _texts(), time.process_time()
    for text in texts:
        libcst.parse_module(text)
    return time.process_time() - before


def user_seconds() -> float:
    """Return the user time of this process so far, and of the processes that it waited for."""
    now = os.times()
    return now.user + now.children_user


def summary(
    tests: Mapping[str, float], whole: float, unit: float, limits: Limits
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the lines on what the tests cost, and those on what is above a limit.

    Args:
        tests: user seconds by the node of a test, and of `LAST`.
        whole: user and system seconds of all, with what starts them.
        unit: CPU seconds of a parse.
        limits: what they may cost.
    """
    files: dict[str, float] = defaultdict(float)
    for test, seconds in tests.items():
        files[test.partition("::")[0]] += seconds
    dearest = Counter(files).most_common(DEAREST)
    lines = [
        f"budget: {whole / unit:.0f} of {limits.whole} parses, {whole:.0f} s of CPU at {unit:.2f} s a parse; "
        f"the {len(dearest)} dearest files in user time, of tests within {limits.test} each:",
        *(f"  {seconds / unit:5.1f}  {seconds:5.1f} s  {file}" for file, seconds in dearest),
    ]
    above = [
        f"{test} costs {seconds / unit:.1f} parses, above {limits.test}"
        for test, seconds in tests.items()
        if test != LAST and seconds / unit > limits.test
    ]
    if whole / unit > limits.whole:
        above.append(f"the first tier costs {whole / unit:.0f} parses, above {limits.whole}")
    return lines, above


@dataclass
class Meter:
    """A plugin of pytest: counts user seconds by test, with those of the processes that it waited for."""

    limits: Limits
    fails: bool
    tests: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    parses: list[float] = field(default_factory=list)
    next_parse: float = 0.0
    lines: Sequence[str] = ()
    above: Sequence[str] = ()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Count what a test costs, with the fixtures that it is the first to need."""
        if time.monotonic() >= self.next_parse:
            self.parses.append(parse_seconds())
            self.next_parse = time.monotonic() + EVERY
        before = user_seconds()
        try:
            return (yield)
        finally:
            self.tests[item.nodeid if nextitem else LAST] += user_seconds() - before

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Take over what a worker counted."""
        tests, parses = getattr(node, "workeroutput", {}).get("cpu", ({}, []))
        self.parses += parses
        for test, seconds in tests.items():
            self.tests[test] += seconds

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        """Hand over what this worker counted; in the process that started the workers, judge it after their end."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu"] = dict(self.tests), self.parses
            return (yield)
        result = yield
        if not self.parses:  # nothing ran
            return result
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        whole = sum(usage.ru_utime + usage.ru_stime for usage in used)
        self.lines, self.above = summary(self.tests, whole, mean(self.parses), self.limits)
        if self.above and self.fails and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write what the tests cost."""
        for line in self.lines:
            terminalreporter.write_line(line)
        for line in self.above:
            terminalreporter.write_line(f"over budget: {line}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """Count, if this is a run of a whole tier."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Meter(DEEP, fails=False), "budget")
    elif config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword:
        traced = config.pluginmanager.hasplugin("_cov")
        limits = DEEP if "not deep" not in config.option.markexpr else TRACED if traced else LIMITS
        config.pluginmanager.register(Meter(limits, fails=bool(os.environ.get("CI"))), "budget")

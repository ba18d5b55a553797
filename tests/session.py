"""The beginning and the end of a whole test run: fetch what the tests need, and summarize what could not run here."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from vpatch.errors import Failure

from tests.releases import FIRST, RELEASES, is_fetched, tree_of
from tests.validation.cpu.environment import prepare

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

IMAGES = re.compile("tests/image/(?!cuda/)")
LONG = (
    "tests/image/|tests/docs/test_recipes|tests/.*_in_browser|tests/overlays/test_(mutants|ct_fp8_lm_head_cpu)",
    "tests/overlays/test_(.*_cpu|orders|probes)|tests/cli/test_releases|tests/matrix/test_command"
    "|tests/plan/test_agreement|tests/tree/test_(faults|half_way|checkout)",
)
"""What takes longest, and comes first, so that no worker begins it when the others are done.

What runs vLLM's own code is in the second group, but for one file: at first all would wait for the same process.
"""


def spare_the_collector() -> None:
    """Collect garbage less often: with many syntax trees alive, the search takes a third of the engine's time."""
    gc.set_threshold(1_000_000, 5, 5)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Fetch and build what a run of the whole suite needs, so that a missing network is one error."""
    spare_the_collector()
    config = session.config
    if hasattr(config, "workerinput") or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    assert isinstance(reporter, pytest.TerminalReporter)

    def tell(line: str) -> None:
        reporter.write_line(line)
        reporter.flush()

    first_tier = "not deep" in config.option.markexpr
    releases = FIRST if first_tier else RELEASES
    if missing := [version for version in releases if not is_fetched(version)]:
        tell(f"fetching vLLM {', '.join(missing)}, once: later runs find it in .cache")
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(_fetch, missing))
    if first_tier:
        return
    try:
        prepare(RELEASES, tell)
    except RuntimeError as error:
        raise pytest.UsageError(f"cannot run the tests: {error}") from None


def _fetch(version: str) -> None:
    try:
        tree_of(version)
    except Failure as error:
        raise pytest.UsageError(f"cannot run the tests: cannot fetch vLLM {version}: {error}") from None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first."""
    items.sort(key=lambda item: [not re.match(names, item.nodeid) for names in LONG])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return how many workers `-n auto` starts: some tests wait for an engine, a browser or another process."""
    return -(-3 * len(os.sched_getaffinity(0)) // 2)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """With `--dist loadfile`, give all tests of images to one worker.

    One engine, one base image and one registry are then enough, and nobody else's containers are in that engine.
    """
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "images" if IMAGES.match(nodeid) else super()._split_scope(nodeid)

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """With `--cov-context=test`, record the test's name in the processes that it starts, too."""
    if settings := item.config.getoption("cov_context", None) and os.environ.get("COVERAGE_PROCESS_CONFIG"):
        from coverage.config import CoverageConfig

        config = CoverageConfig.deserialize(settings)
        config.context = f"{item.nodeid}|process"
        os.environ["COVERAGE_PROCESS_CONFIG"] = config.serialize()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write one line on the tests that could not run here."""
    reasons = Counter(map(_reason, terminalreporter.getreports("skipped")))
    if reasons:
        told = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"{reasons.total()} tests did not run here: {told}", yellow=True)


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    return where[2].removeprefix("Skipped: ") if isinstance(where, tuple) else str(where)

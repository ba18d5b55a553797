"""Which tests of the first tier coverage measures.

It traces every call, which doubles the time of a test that parses or judges. The tests that are left out below take
two thirds of the time, and reach next to no line that the others do not. `--cov-context=test` measures all of them.
"""

from __future__ import annotations

import os
import posix
import re
import sys
from collections.abc import Iterator

import pytest

UNMEASURED = re.compile(
    r"""tests/(
    overlays/test_(?!turboquant_speculation\.py|\w+_companion)
    | cli/test_(apply|bad_files|bad_system|contract|diff|doctor|edits|escapes|outcomes)
    | cli/test_(releases|selection|states|uv|verify) | cli/run/test_run\.py
    | doctor/test_(overlays|stale)
    | run/test_(content|memo|receipt|seen|store)\.py
    | image/(registry/)?test_(build|missing_extra|with)\.py
    | matrix/test_(page_in_browser|revision)\.py
    | plan/test_(agreement|commands|compose|reads_cpu|serve_cpu)
    | tree/test_(decide_once|half_way|site_packages)
    | docs/ | validation/ | test_(action|imports|readme|session|third_party)\.py
    )""",
    re.VERBOSE,
)
CHILDREN = "COVERAGE_PROCESS_CONFIG"
"""The variable by which coverage starts in the processes that a test starts."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Stop tracing while a test of `UNMEASURED` runs, with its fixtures, its forks and the processes that it starts.

    Not by the plugin's own `pause`: its `resume` patches `os._exit` once more each time.
    """
    measuring = item.config.pluginmanager.hasplugin("_cov") and not item.config.getoption("cov_context")
    if not measuring or not UNMEASURED.match(item.nodeid):
        return (yield)
    children, ending, trace = os.environ.pop(CHILDREN, None), os._exit, sys.gettrace()
    os._exit = posix._exit
    sys.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(trace)
        os._exit = ending
        if children is not None:
            os.environ[CHILDREN] = children

"""custom-ar-expandable on real releases: its states, what drifts, and the code that it writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vpatch.testing import State
from vpatch_overlays.companions.custom_ar_expandable import VARIABLES, _switched, capture_shareably

from tests.overlays.tables import check_result, drifted, on, table

ID = "custom-ar-expandable"
GROUPS = "vllm/distributed/parallel_state.py"
CAPTURES = "maybe_ca_context = ca_comm.capture()"

CASES = (
    *on(">=0.18", State.PENDING, "matches the 0.18 layout; 3 changes"),
    *drifted(
        "0.33.0",
        GROUPS,
        # Another fix is not stacked upon.
        (CAPTURES, "maybe_ca_context = non_expandable(ca_comm.capture)", "`ca_comm.capture()` is not there"),
        (CAPTURES, "maybe_ca_context = ca_comm.capturing()", "`ca_comm.capture()` is not there"),
        ("import pickle\n", "import pickle\ncapture_shareably = None\n", "'capture_shareably' is already bound"),
    ),
)

test_case = table(ID, CASES)


def test_only_the_capture_changes(slim: Callable[[str], Path], tmp_path: Path) -> None:
    last = "from vllm.utils.torch_utils import (\n    direct_register_custom_op,\n)\n"
    imported = (last, f"{last}from vllm._vpatch.custom_ar_expandable import capture_shareably\n")
    changed = (CAPTURES, "maybe_ca_context = capture_shareably(ca_comm)")

    check_result(ID, "0.33.0", slim("0.33.0"), tmp_path, GROUPS, imported, changed)


@pytest.mark.parametrize(("conf", "off"), [
    ("expandable_segments:True", "expandable_segments:False"),
    ("max_split_size_mb:512, expandable_segments : True,", "max_split_size_mb:512,expandable_segments:False"),
    ("", "expandable_segments:False"),
])  # fmt: skip
def test_all_else_of_the_configuration_stays(conf: str, off: str) -> None:
    assert _switched(conf, on=False) == off
    assert _switched(off, on=True) == off.replace("False", "True")


@pytest.mark.parametrize(("disabled", "conf"), [(True, "expandable_segments:True"), (False, "max_split_size_mb:512")])
def test_without_need_it_is_only_the_capture(monkeypatch: pytest.MonkeyPatch, conf: str, *, disabled: bool) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, conf)
    captures = count()
    group: Any = SimpleNamespace(disabled=disabled, capture=lambda: nullcontext(next(captures)))
    with capture_shareably(group):  # there is no torch to ask
        assert next(captures) == 1

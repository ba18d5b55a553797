"""`vpatch.testing.check` fails if an expectation of a case is wrong, or if vpatch does something wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vpatch import testing
from vpatch.errors import Problem
from vpatch.testing import Case, State, check
from vpatch.tree import apply as changing
from vpatch.tree.apply import Writes
from vpatch.tree.verify import Verified
from vpatch.tree.write_plan import SitePackages

from tests.conftest import Trees, contents_of, unchanged

PENDING, MERGED = Case("0.20.2", State.PENDING), Case("0.33.0", State.MERGED)
OVERLAY = "hybrid-mtp-prefix"  # small, and so quick
FILE = "vllm/v1/core/kv_cache_coordinator.py"


def run(case: Case, slim: Trees, scratch: Path) -> Path:
    return check(case, OVERLAY, tree=slim(case.release), scratch=scratch)


def test_a_case_that_holds(slim: Trees, patched: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without hard links."""

    def refused(source: str, target: str) -> None:
        raise OSError(18, "Invalid cross-device link")

    expected = patched("0.20.2", OVERLAY) / FILE
    monkeypatch.setattr("vpatch.testing.os.link", refused)
    result = {FILE: expected.read_text() + "\n# comments are no syntax\n"}

    with unchanged(slim("0.20.2")):
        applied = run(Case("0.20.2", State.PENDING, result=result, says="change"), slim, tmp_path)

    assert applied.is_relative_to(tmp_path)
    assert (applied / FILE).read_bytes() == expected.read_bytes()


def test_only_a_pending_overlay_is_applied(slim: Trees, tmp_path: Path) -> None:
    drifted = Case("0.20.2", State.DRIFTED, replace={FILE: ("from abc import ABC", "from abc import (ABC")})

    for case in (drifted, Case("0.33.0", State.MERGED, says="merged upstream")):
        with unchanged(slim(case.release)):
            left = run(case, slim, tmp_path / case.before)
        found = contents_of(left)
        assert {file for file, data in found.items() if data != contents_of(slim(case.release))[file]} <= {FILE}


@pytest.mark.parametrize(
    ("case", "complaint"),
    [
        (Case("0.20.2", State.MERGED), f"{OVERLAY} is pending, not merged: "),
        (Case("0.33.0", State.PENDING), f"{OVERLAY} is merged, not pending: "),
        (Case("0.20.2", State.PENDING, says="nonsense"), "'nonsense' is not in: "),
        (Case("0.20.2", State.PENDING, result={FILE: "x = 1"}), f"{FILE} is not what it should be:"),
        (Case("0.20.2", State.PENDING, replace={FILE: ("nonsense", "")}), "'nonsense' stands 0 times in "),
        (Case("0.20.2", State.PENDING, replace={FILE: ("return", "")}), " times in "),
    ],
)
def test_a_case_that_does_not_hold(slim: Trees, tmp_path: Path, case: Case, complaint: str) -> None:
    with pytest.raises(AssertionError) as failure:
        run(case, slim, tmp_path)

    assert complaint in str(failure.value)


def spoil(root: Path, file: str) -> None:
    """Change a file, which may be a hard link, if one is named."""
    if file:
        data = (root / file).read_bytes()
        (root / file).unlink()
        (root / file).write_bytes(data + b"# spoilt\n")


Fault = Callable[..., object]


def faulty(verb: str, *, before: str = "", after: str = "", answer: Callable[[Any], object] = lambda it: it) -> Fault:
    """Return a verb of vpatch that spoils a file before or after its work, or answers something else."""

    def run(store: SitePackages, *arguments: Any) -> object:
        spoil(store.tree.root, before)
        done = getattr(changing, verb)(store, *(arguments[:1] if verb == "apply" else (arguments[0], None)))
        spoil(store.tree.root, after if verb == "revert" or done[1].changed else "")
        return answer(done)

    return run


def forgetful(store: SitePackages, overlays: Any, *_: Any) -> object:
    """Apply, and leave RECORD as it was."""
    record = store.tree.root / store.tree.record
    before = record.read_bytes()
    done = changing.apply(store, overlays)
    record.unlink()
    record.write_bytes(before)
    return done


INIT = "vllm/__init__.py"
WROTE = faulty("apply", answer=lambda done: (done[0], Writes((INIT,))))
PENDS = faulty("apply", answer=lambda done: (type(done[0])(done[0].before, done[0].before, {}, ()), done[1]))


@pytest.mark.parametrize(
    ("verb", "fault", "case", "complaint"),
    [
        ("apply", faulty("apply", before=INIT), MERGED, "it says that it wrote nothing, and it did"),
        ("apply", WROTE, MERGED, "merged, and yet it wrote ('vllm/__init__.py',)"),
        ("apply", PENDS, PENDING, f"{OVERLAY} is pending after it was applied"),
        ("apply", forgetful, PENDING, "the second run wrote something"),
        ("apply", faulty("apply", after=FILE), PENDING, f"RECORD is not true: {FILE}: "),
        ("verify", lambda *_, **__: Verified((), (Problem("what", "where", "cause"),)), PENDING, "what: where: cause"),
        ("revert", faulty("revert", after=INIT), PENDING, "revert left ['vllm/__init__.py']"),
    ],
)
def test_faults_of_vpatch_fail_the_case(
    slim: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, fault: Fault, case: Case, complaint: str
) -> None:
    monkeypatch.setattr(testing, verb, fault)

    with pytest.raises(AssertionError) as failure:
        run(case, slim, tmp_path)

    assert complaint in str(failure.value)

"""`vpatch.testing.check` fails if an expectation of a case is wrong, or if vpatch does something wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vpatch import testing
from vpatch.core.parse import Lost
from vpatch.errors import Problem
from vpatch.testing import Case, State, check, fingerprint_of
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


def spoil(root: Path, file: str = "vllm/__init__.py") -> None:
    """Change a file, which may be a hard link."""
    data = (root / file).read_bytes()
    (root / file).unlink()
    (root / file).write_bytes(data + b"# spoilt\n")


# Each of these makes vpatch do one thing wrong, which `check` must detect.


def writes_and_says_nothing(store: SitePackages, overlays: Any, _engine: object) -> object:
    spoil(store.tree.root)
    return changing.apply(store, overlays)


def says_that_it_wrote(store: SitePackages, overlays: Any, _engine: object) -> object:
    return changing.apply(store, overlays)[0], Writes(("vllm/__init__.py",))


def leaves_the_state(store: SitePackages, overlays: Any, _engine: object) -> object:
    changeset, changed = changing.apply(store, overlays)
    return type(changeset)(changeset.before, changeset.before, {}, ()), changed


def spoils_what_it_applied(store: SitePackages, overlays: Any, _engine: object) -> object:
    result = changing.apply(store, overlays)
    if result[1].changed:
        spoil(store.tree.root, FILE)
    return result


def does_not_verify(*_: object, **__: object) -> Verified:
    return Verified((), (Problem("what", "where", "cause"),))


def reverts_too_little(store: SitePackages, installed: Any, _overlays: object, _engine: object) -> None:
    changing.revert(store, installed, None)
    spoil(store.tree.root)


def reverts_too_much(store: SitePackages, installed: Any, _overlays: object, _engine: object) -> None:
    changing.revert(store, installed, None)
    (store.tree.root / FILE).unlink()


@pytest.mark.parametrize(
    ("verb", "fault", "case", "complaint"),
    [
        ("apply", writes_and_says_nothing, MERGED, "it says that it wrote nothing, and it did"),
        ("apply", says_that_it_wrote, MERGED, "merged, and yet it wrote ('vllm/__init__.py',)"),
        ("apply", says_that_it_wrote, PENDING, "the second run wrote something"),
        ("apply", leaves_the_state, PENDING, f"{OVERLAY} is pending after it was applied"),
        ("apply", spoils_what_it_applied, PENDING, "the second run wrote something"),
        ("verify", does_not_verify, PENDING, "what: where: cause"),
        ("revert", reverts_too_little, PENDING, "revert left ['vllm/__init__.py']"),
        ("revert", reverts_too_much, PENDING, f"revert left ['{FILE}']"),
    ],
)
def test_faults_of_vpatch_fail_the_case(
    slim: Trees,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    fault: Callable[..., object],
    case: Case,
    complaint: str,
) -> None:
    monkeypatch.setattr(testing, verb, fault)

    with pytest.raises(AssertionError) as failure:
        run(case, slim, tmp_path)

    assert complaint in str(failure.value)


def test_fingerprint(tmp_path: Path) -> None:
    """Layout and comments do not count."""
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text("class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n")
    other.write_text("class A:\n    def f(self):  # a comment\n        return (\n            1\n        )\n")

    assert fingerprint_of(one, "A.f") == fingerprint_of(other, "A.f")
    assert fingerprint_of(one, "A.f") != fingerprint_of(one, "A.g")
    with pytest.raises(Lost):
        fingerprint_of(one, "A.h")


def test_the_name_of_a_case() -> None:
    long = Case("0.20.2", State.DRIFTED, says="what it says of it, and at great length")

    assert str(long) == "0.20.2-drifted-what_it_says_of_it,_and_at_gre"
    assert str(PENDING) == "0.20.2-pending"

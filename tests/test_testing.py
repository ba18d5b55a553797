"""`vpatch.testing.check` fails if an expectation of a case is wrong, or if vpatch does something wrong."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
from vpatch import testing
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.core.parse import Lost
from vpatch.errors import Problem
from vpatch.testing import Case, State, check, fingerprint_of
from vpatch.tree import apply as changing
from vpatch.tree.locate import locate
from vpatch.tree.verify import Verified
from vpatch.tree.write_plan import SitePackages

from tests.conftest import Trees, contents_of
from tests.hybrid import CONFIG, HYBRID, INTERFACE

PENDING = Case("0.20.2", State.PENDING)
SUMS = ("self.value_fp8 = True", "self.value_fp8 = False")


def run(case: Case, slim: Trees, scratch: Path) -> Path:
    return check(case, HYBRID, tree=slim(case.release), scratch=scratch)


def test_a_case_that_holds(slim: Trees, patched: Trees, tmp_path: Path) -> None:
    result = {
        file: (patched("0.20.2", HYBRID) / file).read_text() + "\n# comments are no syntax\n" for file in (CONFIG,)
    }

    applied = run(Case("0.20.2", State.PENDING, result=result, says="12 of 12"), slim, tmp_path)

    assert applied.is_relative_to(tmp_path)
    assert (applied / INTERFACE).read_bytes() == (patched("0.20.2", HYBRID) / INTERFACE).read_bytes()


def test_the_release_does_not_change(slim: Trees, tmp_path: Path) -> None:
    before = contents_of(slim("0.20.2"))

    run(Case("0.20.2", State.DRIFTED, replace={CONFIG: ("import math", "import cmath as math (")}), slim, tmp_path)

    assert contents_of(slim("0.20.2")) == before


def test_only_a_pending_overlay_is_applied(slim: Trees, tmp_path: Path) -> None:
    left = run(Case("0.21.0", State.MERGED, says="#39931"), slim, tmp_path)

    assert not (left / "vllm/_vpatch").exists()


@pytest.mark.parametrize(
    ("case", "complaint"),
    [
        (Case("0.20.2", State.MERGED), f"{HYBRID} is pending, not merged: "),
        (Case("0.21.0", State.PENDING), f"{HYBRID} is merged, not pending: "),
        (Case("0.20.2", State.PENDING, says="nonsense"), "'nonsense' is not in: "),
        (Case("0.20.2", State.PENDING, result={CONFIG: "x = 1"}), f"{CONFIG} is not what it should be:"),
        (Case("0.20.2", State.PENDING, replace={CONFIG: ("nonsense", "")}), "'nonsense' stands 0 times in "),
        (Case("0.20.2", State.PENDING, replace={CONFIG: ("return", "")}), " times in "),
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


class Faults:
    """Each makes vpatch do one thing wrong, which `check` must detect."""

    @staticmethod
    def writes_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> Case:
        def apply(store: SitePackages, overlays: object, _engine: object) -> object:
            spoil(store.tree.root)
            return changing.apply(store, overlays)  # type: ignore[arg-type]

        monkeypatch.setattr(testing, "apply", apply)
        return Case("0.21.0", State.MERGED)

    @staticmethod
    def writes_where_nothing_is_pending(monkeypatch: pytest.MonkeyPatch) -> Case:
        def apply(store: SitePackages, overlays: object, _engine: object) -> object:
            return changing.apply(store, overlays)[0], ("vllm/__init__.py",)  # type: ignore[arg-type]

        monkeypatch.setattr(testing, "apply", apply)
        return Case("0.21.0", State.MERGED)

    @staticmethod
    def writes_each_time(monkeypatch: pytest.MonkeyPatch) -> Case:
        def apply(store: SitePackages, overlays: object, _engine: object) -> object:
            return changing.apply(store, overlays)[0], ("vllm/__init__.py",)  # type: ignore[arg-type]

        monkeypatch.setattr(testing, "apply", apply)
        return PENDING

    @staticmethod
    def leaves_the_state(monkeypatch: pytest.MonkeyPatch) -> Case:
        def apply(store: SitePackages, overlays: object, _engine: object) -> object:
            changeset, changed = changing.apply(store, overlays)  # type: ignore[arg-type]
            return type(changeset)(changeset.before, changeset.before, {}, ()), changed

        monkeypatch.setattr(testing, "apply", apply)
        return PENDING

    @staticmethod
    def spoils_what_it_applied(monkeypatch: pytest.MonkeyPatch) -> Case:
        def apply(store: SitePackages, overlays: object, _engine: object) -> object:
            result = changing.apply(store, overlays)  # type: ignore[arg-type]
            if result[1]:
                spoil(store.tree.root, INTERFACE)
            return result

        monkeypatch.setattr(testing, "apply", apply)
        return PENDING

    @staticmethod
    def does_not_verify(monkeypatch: pytest.MonkeyPatch) -> Case:
        monkeypatch.setattr(testing, "verify", lambda *_, **__: Verified((), (Problem("what", "where", "cause"),)))
        return PENDING

    @staticmethod
    def reverts_too_little(monkeypatch: pytest.MonkeyPatch) -> Case:
        def revert(store: SitePackages, installed: object, overlays: object, _engine: object) -> None:
            changing.revert(store, installed, None)  # type: ignore[arg-type]
            spoil(store.tree.root)

        monkeypatch.setattr(testing, "revert", revert)
        return PENDING

    @staticmethod
    def reverts_too_much(monkeypatch: pytest.MonkeyPatch) -> Case:
        def revert(store: SitePackages, installed: object, overlays: object, _engine: object) -> None:
            changing.revert(store, installed, None)  # type: ignore[arg-type]
            (store.tree.root / INTERFACE).unlink()

        monkeypatch.setattr(testing, "revert", revert)
        return PENDING


COMPLAINTS: Mapping[str, str] = {
    "writes_and_says_nothing": "it says that it wrote nothing, and it did",
    "writes_where_nothing_is_pending": "merged, and yet it wrote ('vllm/__init__.py',)",
    "writes_each_time": "the second run wrote something",
    "leaves_the_state": f"{HYBRID} is pending after it was applied",
    "spoils_what_it_applied": "the second run wrote something",
    "does_not_verify": "what: where: cause",
    "reverts_too_little": "revert left ['vllm/__init__.py']",
    "reverts_too_much": f"revert left ['{INTERFACE}']",
}


@pytest.mark.parametrize("fault", COMPLAINTS)
def test_faults_of_vpatch_fail_the_case(
    slim: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    case = getattr(Faults, fault)(monkeypatch)

    with pytest.raises(AssertionError) as failure:
        run(case, slim, tmp_path)

    assert COMPLAINTS[fault] in str(failure.value)


def test_without_hard_links(slim: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("vpatch.testing.os.link", refused)

    run(PENDING, slim, tmp_path)


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
    assert str(Case("0.20.2", State.DRIFTED, says="what it says of it, and at great length")) == (
        "0.20.2-drifted-what_it_says_of_it,_and_at_gre"
    )
    assert str(PENDING) == "0.20.2-pending"


def test_the_applied_tree_is_returned(slim: Trees, tmp_path: Path) -> None:
    """A check of the checks above: the overlay is applied in the returned tree."""
    applied = run(PENDING, slim, tmp_path)

    (verdict,) = Engine(select(discover(), (HYBRID,))).status(locate(applied).read)
    assert verdict.state is State.APPLIED
    ast.parse((applied / CONFIG).read_bytes())

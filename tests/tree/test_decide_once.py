"""How often one run reads files, parses RECORD, decides what to write, and takes the lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import vpatch
from vpatch import foreign
from vpatch.core.catalogue import discover, select
from vpatch.tree import backup, checkout, record
from vpatch.tree import locate as locating
from vpatch.tree.apply import apply, revert
from vpatch.tree.checkout import Checkout
from vpatch.tree.locate import locate
from vpatch.tree.write_plan import SitePackages

from tests.conftest import untouched
from tests.hybrid import HYBRID, UPSTREAMS

CHOSEN = select(discover(), (HYBRID, "turboquant-skip-list"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each file is read; every file counts as unchanged for long before the test."""
    found: Counter[str] = Counter()
    real = foreign.read_opened

    def counting(file: int, *most: int) -> bytes:
        found[str(Path(f"/proc/self/fd/{file}").resolve())] += 1
        return real(file, *most)

    for module in (foreign, locating, backup):
        monkeypatch.setattr(module, "read_opened", counting)
    monkeypatch.setattr("vpatch.tree.locate._TICK", 0)
    return found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls of the functions that a run should call once."""
    found: Counter[str] = Counter()

    def count(where: object, name: str) -> None:
        real: Callable[..., Any] = getattr(where, name)

        def counting(*args: Any, **options: Any) -> Any:
            found[name] += 1
            return real(*args, **options)

        monkeypatch.setattr(where, name, counting)

    count(record, "parse")
    count(SitePackages, "lock")
    count(SitePackages, "decide")
    count(Checkout, "decide")
    return found


def test_apply_decides_once(tree: Path, reads: Counter[str], calls: Counter[str]) -> None:
    existing = {path for path in tree.rglob("*.py") if path.is_file()}

    changeset, writes = apply(SitePackages(locate(tree)), CHOSEN)

    counted = {
        file: reads[str(tree / file)] for file in writes.changed if tree / file in existing or file.endswith("RECORD")
    }
    assert counted.keys() == {file for file in changeset.files if tree / file in existing} | {
        file for file in writes.changed if file.endswith("RECORD")
    }
    assert set(counted.values()) == {2}
    assert calls == {"parse": 1, "decide": 1, "lock": 1}


def test_apply_again_takes_no_lock_and_writes_nothing(tree: Path, reads: Counter[str], calls: Counter[str]) -> None:
    apply(SitePackages(locate(tree)), CHOSEN)

    with untouched(tree):
        calls.clear()
        reads.clear()
        changeset, writes = apply(SitePackages(locate(tree)), CHOSEN)

        assert (changeset.problems, writes.changed) == ((), ())
        assert (calls["decide"], calls["lock"]) == (1, 0)
        assert max(count for path, count in reads.items() if path.startswith(f"{tree}/vllm/")) == 1


@pytest.mark.parametrize("only", [None, HYBRID])
def test_revert_decides_once(tree: Path, calls: Counter[str], only: str | None) -> None:
    store, installed = SitePackages(locate(tree)), CHOSEN
    apply(store, installed)
    calls.clear()

    assert revert(store, installed, select(installed, (only,)) if only else None).changed

    # The RECORD in place, and the one that was kept.
    assert calls == {"parse": 2, "decide": 1, "lock": 1}


@pytest.mark.parametrize("verb", [vpatch.status, vpatch.diff, vpatch.verify])
def test_a_verb_asks_a_checkout_once(clone: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., object]) -> None:
    """It has 1,723 modules, and any of them may have marks."""
    apply(Checkout.at(locate(clone)), select(discover(), (HYBRID,)))
    walks: list[Path] = []

    def walk(root: Path) -> Iterator[str]:
        walks.append(root)
        return iter(())

    monkeypatch.setattr(checkout, "_files", walk)

    verb(clone, [HYBRID])

    assert len(walks) == 1


def test_a_checkout_decides_once(clone: Path, reads: Counter[str], calls: Counter[str]) -> None:
    store, overlays = Checkout.at(locate(clone)), select(discover(), (HYBRID,))

    assert apply(store, overlays)[1].changed
    assert {reads[str(clone / file)] for file in UPSTREAMS} == {2}
    assert apply(store, overlays)[1].changed == ()
    assert revert(store, overlays, None).changed

    assert calls == {"decide": 3}

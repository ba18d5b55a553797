"""What a process of the pool does with one vLLM, in this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.matrix import worker
from vpatch.matrix.worker import Together, work

from tests.releases import fact

if TYPE_CHECKING:
    from tests.conftest import Trees

IDS = tuple(item.id for item in select(discover(), ("turboquant-hybrid", "turboquant-skip-list", "turboquant-tiles")))


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    worker._engine.cache_clear()


def files(trees: Trees, release: str) -> dict[str, bytes]:
    root = trees(release)
    return {file: (root / file).read_bytes() for file in Engine(discover()).files if (root / file).is_file()}


def test_what_is_asked_for_is_looked_at(slim: Trees) -> None:
    cells, both = work(files(slim, "0.20.2"), IDS, IDS[:2], IDS)

    assert {name: cell.verdict.state for name, cell in cells.items()} == {
        name: fact(name, "0.20.2") for name in IDS[:2]
    }
    assert both == Together({}, ())


def test_only_what_a_neighbour_may_share_is_kept(slim: Trees) -> None:
    first, second = files(slim, "0.20.1"), files(slim, "0.20.2")
    work(first, IDS, IDS, ())
    kept = {data for _, data in worker._engine(frozenset(IDS))._cache._known}
    work(second, IDS, IDS, ())

    assert kept
    assert kept <= set(first.values())
    assert {data for _, data in worker._engine(frozenset(IDS))._cache._known} <= set(second.values())

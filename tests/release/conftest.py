"""The loopback index, and a check that a wheel is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.release.fetch import fetch

from tests.failures import problems_of
from tests.loopback import NAME, IndexServer, index, settings

__all__ = ["index", "settings"]

Refusal = Callable[[bytes], str]
DATE = 1777863720  # of the files in a made-up wheel: 2026-05-04 03:02:00 UTC


def files_of(tree: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


@pytest.fixture
def refusal(index: IndexServer, tmp_path: Path) -> Refusal:
    """`refusal(wheel)`: fetch a wheel that must be refused; return the message, and check that nothing is left."""

    def refuse(wheel: bytes) -> str:
        index.publish(NAME, wheel)
        before = sorted(tmp_path.iterdir())
        problems = problems_of(fetch, "1.0", tmp_path / "new" / "tree")
        assert sorted(tmp_path.iterdir()) == before
        return "\n".join(map(str, problems))

    return refuse

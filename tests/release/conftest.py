"""Wheels that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.release.fetch import fetch

from tests.loopback import NAME, Site, settings, site

__all__ = ["settings", "site"]


@pytest.fixture
def refusal(site: Site, tmp_path: Path) -> Callable[[bytes], str]:
    """`refusal(wheel)`: what `fetch` says of a wheel that it must refuse, leaving nothing behind."""

    def refuse(wheel: bytes) -> str:
        site.publish(NAME, wheel)
        before = sorted(tmp_path.iterdir())
        with pytest.raises(Failure) as caught:
            fetch("1.0", tmp_path / "new" / "tree")
        assert sorted(tmp_path.iterdir()) == before
        return str(caught.value)

    return refuse

"""Every vLLM release that the overlays cover, and the state that each overlay declares for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.specifiers import SpecifierSet
from vpatch.core.catalogue import discover
from vpatch.testing import Case, release

from tests.paths import CACHE
from tests.tiers import deep

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

RELEASES = (
    *("0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0"),
    *("0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"),
    "0.33.0",
)

FIRST = ("0.20.2", "0.33.0")
"""The releases of the first tier: the pin of most users, and the newest release."""

SHAPES = ("0.18.0", "0.20.2", "0.21.0", "0.26.0", "0.31.0", "0.33.0")
"""Releases that together have every shape and state of every part of every overlay, for what takes long on each."""

SAME_TURBOQUANT: Mapping[str, str] = {"0.20.1": "0.20.2", "0.22.1": "0.22.0", "0.25.1": "0.25.0", "0.27.1": "0.27.0"}
"""Patch releases, each with the one whose files are the same, as far as overlays of TurboQuant read or change them."""

FACTS: Mapping[str, Mapping[str, str]] = {
    item.id: {span: what.partition(":")[0] for span, what in item.overlay.releases.items()}
    for item in discover()
    if item.origin.startswith("vpatch ")
}
"""By overlay and range of releases, the state that the overlay says it has there."""


def fact(overlay: str, release: str) -> str:
    """Return the state that an overlay declares for a pristine release."""
    (state,) = said(FACTS[overlay], release)
    return state


UNLISTED: Mapping[str, str] = {"sm12x-deepgemm": "not_applicable"}
"""By overlay that lists a folder which only the whole wheel has: its state on every tree of Python files alone."""


def shown(overlay: str, release: str) -> str:
    """Return an overlay's state on a release as `tree_of` has it, which is of Python files alone."""
    return UNLISTED.get(overlay) or fact(overlay, release)


def todo(release: str) -> tuple[str, ...]:
    """Return the default overlays that are pending on a release as `tree_of` has it, in their order."""
    return _default(release, "pending")


def unneeded(release: str) -> tuple[str, ...]:
    """Return the default overlays that are not applicable to a release as `tree_of` has it, in their order."""
    return _default(release, "not_applicable")


def _default(release: str, state: str) -> tuple[str, ...]:
    opt_in = {item.id for item in discover() if item.overlay.opt_in}
    return tuple(sorted(name for name in FACTS if name not in opt_in and shown(name, release) == state))


def said(ranges: Mapping[str, str], release: str) -> Iterator[str]:
    """Yield the values of the version ranges that contain a release."""
    return (what for span, what in ranges.items() if SpecifierSet(span).contains(release))


def tree_of(version: str) -> Path:
    """Return the folder of a pristine release, fetched if necessary. Do not modify it."""
    return release(version, CACHE / "trees")


def is_fetched(version: str) -> bool:
    """Whether `tree_of` has a release without the network."""
    return (CACHE / "trees" / version).exists()


def tiered(releases: Iterable[str], first: Iterable[str] = FIRST) -> list[str | ParameterSet]:
    """Return releases as test parameters; those that are not in `first` are of the deep tier."""
    return [one if one in {*first} else deep(one) for one in releases]


def cases(table: Iterable[Case]) -> list[ParameterSet]:
    """Return the cases of an overlay as test parameters.

    Those of releases that are not in `FIRST` are of the deep tier.
    """
    return [
        pytest.param(one, marks=() if one.release in FIRST else pytest.mark.deep, id=f"{number}-{one}")
        for number, one in enumerate(table)
    ]


def pending(overlay: str) -> tuple[str, ...]:
    """Return the releases on which an overlay is declared pending."""
    return tuple(release for release in RELEASES if fact(overlay, release) == "pending")

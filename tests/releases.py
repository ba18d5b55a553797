"""Every vLLM release that the overlays answer for, and what the facts say each is to each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.specifiers import SpecifierSet

RELEASES = (
    *("0.18.0", "0.18.1", "0.19.0", "0.19.1", "0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0"),
    *("0.24.0", "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0"),
    "0.33.0",
)

FACTS: Mapping[str, Mapping[str, str]] = {
    "ct-fp8-lm-head": {">=0.18": "pending"},
    "turboquant-auto-dtype": {"<0.25": "not_applicable", ">=0.25,<0.27": "pending", ">=0.27": "merged"},
    "turboquant-hybrid": {"<0.20": "not_applicable", ">=0.20,<0.21": "pending", ">=0.21": "merged"},
    "turboquant-skip-list": {"<0.20": "not_applicable", ">=0.20,<0.32": "pending", ">=0.32": "merged"},
    "turboquant-tiles": {"<0.20": "not_applicable", ">=0.20": "pending"},
    "turboquant-workspace": {"<0.20": "not_applicable", ">=0.20,<0.24": "pending", ">=0.24": "merged"},
}


def fact(overlay: str, release: str) -> str:
    """Give the state that a pristine release is in."""
    (state,) = said(FACTS[overlay], release)
    return state


def said(ranges: Mapping[str, str], release: str) -> Iterator[str]:
    """Give what is said of the ranges that a release is in."""
    return (what for span, what in ranges.items() if SpecifierSet(span).contains(release))


def pending(overlay: str) -> tuple[str, ...]:
    """Give the releases on which an overlay has something to do."""
    return tuple(release for release in RELEASES if fact(overlay, release) == "pending")

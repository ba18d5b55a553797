"""What the tables of several overlays' cases have in common."""

from __future__ import annotations

from collections.abc import Iterator

from vpatch.testing import Case, State


def drifted(release: str, file: str, *changes: tuple[str, str, str]) -> Iterator[Case]:
    """Yield a case for each change that makes an overlay drifted: the old code, the new code, and what vpatch says."""
    for old, new, says in changes:
        yield Case(release, State.DRIFTED, replace={file: (old, new)}, says=says)


WITHOUT_TURBOQUANT = tuple(
    Case(release, State.NOT_APPLICABLE, says="lists no turboquant_*")
    for release in ("0.18.0", "0.18.1", "0.19.0", "0.19.1")
)

CACHE = "vllm/config/cache.py"
CACHE_TYPES = ("CacheDType = Literal[", "CacheDTypes = Literal[")

# A broken tree is never taken for one without the feature.
BROKEN = Case("0.18.0", State.DRIFTED, replace={CACHE: CACHE_TYPES}, says="CacheDType 0 times")

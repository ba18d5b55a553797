"""What the tables of several overlays' cases have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from vpatch.testing import Case, State, check

from tests.releases import RELEASES, cases

Change = tuple[str, str]
"""Code that a file has once, and what stands there instead."""


def on(releases: str, state: State, says: str = "") -> Iterator[Case]:
    """Yield a case for each release in a range of versions."""
    return (Case(release, state, says=says) for release in RELEASES if SpecifierSet(releases).contains(release))


def drifted(release: str, file: str, *changes: tuple[str, str, str]) -> Iterator[Case]:
    """Yield a case for each change that makes an overlay drifted: the old code, the new code, and what vpatch says."""
    for old, new, says in changes:
        yield Case(release, State.DRIFTED, replace={file: (old, new)}, says=says)


def table(overlay: str, rows: Iterable[Case]) -> Callable[..., None]:
    """Return the test of an overlay's cases."""

    @pytest.mark.parametrize("case", cases(rows))
    def test_case(case: Case, slim: Callable[[str], Path], tmp_path: Path) -> None:
        check(case, overlay, tree=slim(case.release), scratch=tmp_path)

    return test_case


def changed(text: str, *changes: Change) -> str:
    """Return a text with changes."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def check_result(overlay: str, release: str, tree: Path, scratch: Path, file: str, *changes: Change) -> None:
    """Hold that an overlay makes these changes in a file, and no others."""
    result = changed((tree / file).read_text(), *changes)
    check(Case(release, State.PENDING, result={file: result}), overlay, tree=tree, scratch=scratch)


def check_edited(case: Case, overlay: str, tree: Path, scratch: Path, file: str, *changes: Change) -> None:
    """Check a case on a tree of links, after these changes of a file."""
    text = changed((tree / file).read_text(), *changes)
    compile(text, file, "exec", dont_inherit=True)
    (tree / file).unlink()
    (tree / file).write_text(text)
    scratch.mkdir()
    check(case, overlay, tree=tree, scratch=scratch)


CACHE = "vllm/config/cache.py"
CACHE_TYPES = ("CacheDType = Literal[", "CacheDTypes = Literal[")

WITHOUT_TURBOQUANT = (
    *on("<0.20", State.NOT_APPLICABLE, "lists no turboquant_*"),
    # A broken tree is never taken for one without the feature.
    Case("0.18.0", State.DRIFTED, replace={CACHE: CACHE_TYPES}, says="CacheDType 0 times"),
)

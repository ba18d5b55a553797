"""A probe on a release as published and on the same with overlays: what most tests on the real vLLM look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from tests.releases import tree_of
from tests.validation.cpu.environment import interpreter, probe
from tests.validation.cpu.trees import patched_tree


class Comparison(NamedTuple):
    """Results of a probe in a tree as published, and in the patched one."""

    stock: Any
    patched: Any


def compared(module: str, release: str, overlays: Sequence[str], *arguments: str, **options: str) -> Comparison:
    """Run a probe on both trees of a release."""
    trees = (tree_of(release), patched_tree(release, *overlays))
    return Comparison(*(ran(module, release, tree, *arguments, **options) for tree in trees))


def ran(module: str, release: str, tree: Path, *arguments: str, **options: str) -> dict[str, Any]:
    """Run a probe on a tree, in the environment of a release."""
    with TemporaryDirectory() as home:
        return probe(interpreter(release), module, tree, Path(home), *arguments, **options)


def beside(module: str, *overlays: str, models: bool = False) -> Any:
    """Make a fixture that compares what a probe finds on both trees of the `release`; some probes need the models."""

    @pytest.fixture(scope="module")
    def seen(release: str, request: pytest.FixtureRequest) -> Comparison:
        folder = [request.getfixturevalue("folder")] if models else []
        return compared(module, release, overlays, *folder)

    return seen


def each(values: Iterable[Any]) -> Any:
    """Make a fixture that has each of these values in turn, for all tests of a module; it is called as the variable."""

    @pytest.fixture(scope="module", params=list(values))
    def value(request: pytest.FixtureRequest) -> Any:
        return request.param

    return value

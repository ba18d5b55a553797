"""The commands of recipes and other pages, run in order as a reader would; `registry.py` says how for each page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Trees
from tests.docs.machine import Machine, machine, machine_in, walking_machine_in
from tests.docs.recipe import run
from tests.docs.registry import ON_A_MACHINE, WALKS, WITH_TORCH
from tests.needs import need
from tests.tiers import sampled
from tests.validation.cpu.environment import BYTECODE, CHOSEN, interpreter

__all__ = ["machine"]

pytestmark = pytest.mark.deep

ALWAYS = "docs/patching-already.md"
"""A user's way over a bump of vLLM, which every run of the deep tier takes."""


@pytest.mark.parametrize("page", dict.fromkeys([*sampled([*ON_A_MACHINE], 6), ALWAYS]))
def test_a_page(machine: Machine, tmp_path: Path, page: str) -> None:
    need("git")
    if page == "docs/recipes/air-gapped.md":
        need("root")  # to have a process without network
    run(page, ON_A_MACHINE[page], tmp_path / "recipe", machine)


@pytest.fixture(scope="module")
def walking_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The machine of the pages of first hours."""
    with walking_machine_in(tmp_path_factory.mktemp("walks")) as made:
        yield made


@pytest.mark.parametrize("page", WALKS)
def test_a_first_hour(walking_machine: Machine, tmp_path: Path, page: str) -> None:
    """Its screens are those of a terminal of 80 columns. `python -m tests.walks` records them anew."""
    need("git")
    run(page, WALKS[page], tmp_path / "walk", walking_machine)


@pytest.fixture(scope="module")
def with_torch(pristine: Trees, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with whole vLLMs, and the packages that they import."""
    if CHOSEN in os.environ:
        pytest.skip(f"{CHOSEN} has them, which may be another Python")
    (packages,) = interpreter("0.20.2").parents[1].glob("lib/python*/site-packages")
    with machine_in(tmp_path_factory.mktemp("torch"), pristine) as made:
        compiled = {"PYTHONPYCACHEPREFIX": str(BYTECODE), "PYTHONDONTWRITEBYTECODE": "1"}  # of torch and others
        yield {**made, **compiled, "PACKAGES": str(packages), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize("page", WITH_TORCH)
def test_a_page_that_imports_vllm(with_torch: Machine, tmp_path: Path, page: str) -> None:
    run(page, WITH_TORCH[page], tmp_path / "recipe", with_torch)

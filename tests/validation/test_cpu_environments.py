"""The real vLLM code of each release in its CPU environment."""

from __future__ import annotations

from itertools import pairwise

import pytest
from vpatch.core.catalogue import discover

from tests.paths import ROOT
from tests.validation.cpu.environment import interpreter
from tests.validation.cpu.table import BEGIN, EXERCISED, FILE, RELEASES, RUNS, cell, hindrances


@pytest.mark.deep
@pytest.mark.parametrize("release", RELEASES)
def test_the_table_lists_the_importable_modules(release: str) -> None:
    found = hindrances(release)
    said = {row[0]: row[1 + RELEASES.index(release)] for row in _rows()}

    assert said == {f"`{name.removeprefix('vllm.')}`": cell(name, release, found[name]) for name in EXERCISED}


def test_the_table_has_a_row_for_every_module_that_an_overlay_changes() -> None:
    parts = [part for item in discover() for part in item.overlay.parts]
    files = {edit.file for part in parts for shape in part.shapes for edit in shape.edits}
    modules = {file.removesuffix(".py").replace("/", ".") for file in files if "/_vpatch/" not in file}

    assert modules
    assert modules <= EXERCISED.keys()


@pytest.mark.parametrize("name", RUNS)
def test_the_table_names_existing_tests(name: str) -> None:
    file, releases = RUNS[name]
    text = (ROOT / "tests" / file).read_text()

    assert f"- {name}: `{file}`\n" in FILE.read_text()
    assert all(f'"{release}"' in text for release in releases) or "pending(" in text or "import FIRST" in text


@pytest.mark.deep
def test_there_are_two_environments() -> None:
    pythons = [interpreter(release) for release in RELEASES]

    assert [one != other for one, other in pairwise(pythons)] == [True, False, True, False, False]


def _rows() -> list[list[str]]:
    _, _, rest = FILE.read_text().partition(BEGIN)
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]

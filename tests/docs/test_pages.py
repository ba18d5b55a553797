"""What pages quote: code, commands with their options, and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from vpatch.cli.main import program

from tests.docs.page import blocks
from tests.paths import ROOT

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
GUIDE = (ROOT / "docs/writing-overlays.md").read_text()


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Yield each call of vpatch in a page's shell examples: the command, and the rest of the line."""
    for block in filter(lambda block: block.is_shell, blocks(page)):
        yield from re.findall(r"(?<![\w-])(?<!vpatch/)vpatch (\w+)\b([^\n#|&;)]*)", block.text.replace("\\\n", " "))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_on_a_page_exists(page: Path) -> None:
    for name, rest in commands(page):
        command = program.get_command(click.Context(program), name)
        assert command, name
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        assert set(re.findall(r"(?<=\s)--?[a-z][\w-]*", rest.partition(" -- ")[0])) <= known, f"vpatch {name}{rest}"


def test_examples_are_found() -> None:
    counts = {page.name: len(list(commands(page))) for page in PAGES}

    assert counts["images.md"] > 10
    assert counts["getting-started.md"] > 5
    assert counts["README.md"] > 5


EXCERPTS = re.findall(r"^<!-- from (\S+) -->\n```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("file", "code"), EXCERPTS)
def test_the_guide_quotes_the_overlay_as_it_is(file: str, code: str) -> None:
    assert f"\n{code}" in (ROOT / file).read_text()


def test_the_guide_has_no_other_code() -> None:
    assert len(EXCERPTS) == GUIDE.count("```python\n") >= 8


def test_the_summary_of_the_validation_is_short_and_its_numbers_are_in_the_tables() -> None:
    text = (ROOT / "docs/validation.md").read_text()
    summary, _, evidence = text.removeprefix("# Validation\n").partition("<!-- cpu")
    lines = [line for line in summary.splitlines() if line]

    assert 5 < len(lines) <= 10
    assert max(map(len, lines)) <= 132
    numbers = {number for number in re.findall(r"(?<![\w.])\d[\d.,]*\d", summary) if len(number) > 2}
    assert len(numbers) > 5
    assert {number for number in numbers if not re.search(rf"(?<!\d){re.escape(number)}", evidence)} == set()

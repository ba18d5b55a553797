"""What pages quote: code, commands with their options, and numbers; and that a test runs every command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from vpatch.cli.main import program

from tests.__main__ import failure
from tests.docs.recipe import blocks
from tests.docs.registry import BY_NAME, IN_AN_ENGINE, ON_A_MACHINE, WALKS, WITH_TORCH
from tests.paths import ROOT

PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
RUN = {**ON_A_MACHINE, **WALKS, **WITH_TORCH, **IN_AN_ENGINE}
GUIDE = (ROOT / "docs/writing-overlays.md").read_text()
EXCERPTS = re.findall(r"^<!-- from (\S+) -->\n```python\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def test_every_command_is_run_by_a_test_or_says_why_not() -> None:
    shell = [(page, block) for page in PAGES for block in blocks(ROOT / page) if block.is_shell]
    others = [(page, block) for page, block in shell if page not in RUN and (page, block.mark) not in BY_NAME]

    assert [block.where for _, block in others if not block.reason] == []
    assert [block.where for _, block in others if len((block.reason or "").split()) < 3] == [], "no reason"
    assert RUN.keys() <= {page for page, block in shell if not block.reason}
    for (page, name), test in BY_NAME.items():
        file, _, function = test.partition("::")
        assert name in {block.mark for block in blocks(ROOT / page)}
        assert f"\ndef {function}(" in (ROOT / file).read_text()


def test_the_workflows_on_a_page_are_valid(tmp_path: Path) -> None:
    marked = {block.mark: block.text for block in blocks(ROOT / "docs/recipes/github-actions.md")}
    for name in ("test.yml", "matrix.yml"):
        (tmp_path / name).write_text(marked[f"file: .github/workflows/{name}"])

    schema = ("check-jsonschema", "--builtin-schema", "vendor.github-workflows")
    assert failure([*schema, *map(str, tmp_path.iterdir())]) == ""


def commands(page: str) -> Iterator[tuple[str, str]]:
    """Yield each call of vpatch in a page's shell examples: the command, and the rest of the line."""
    for block in filter(lambda block: block.is_shell, blocks(ROOT / page)):
        yield from re.findall(r"(?<![\w-])(?<!vpatch/)vpatch (\w+)\b([^\n#|&;)]*)", block.text.replace("\\\n", " "))


def test_every_option_on_a_page_exists() -> None:
    found = [(page, *call) for page in (*PAGES, "CONTRIBUTING.md") for call in commands(page)]

    assert len(found) > 50
    for page, name, rest in found:
        command = program.get_command(click.Context(program), name)
        assert command, f"{page}: {name}"
        known = {"--help", *(option for one in command.params for option in (*one.opts, *one.secondary_opts))}
        ours = re.sub(r"'[^']*'", "", rest.partition(" -- ")[0])  # quoted is another program's command
        options = set(re.findall(r"(?<=\s)--?[a-z][\w-]*", ours))
        assert options <= known, f"{page}: vpatch {name}{rest}"


ALONE = ["docs/images.md", "docs/kubernetes.md", "docs/ray.md", *(page for page in PAGES if "/recipes/" in page)]


@pytest.mark.parametrize("page", ALONE)
def test_a_command_to_copy_stands_alone_on_its_line(page: str) -> None:
    """With no comment behind it, and no sentence around a long one; a table has no room for lines of its own."""
    commented = [line for block in blocks(ROOT / page) if block.is_shell for line in block.text.splitlines()]
    prose = re.sub(r"^ *```.*?^ *```$|^\|.*?$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)

    assert [line for line in commented if re.search(r"\S\s+# ", line)] == []
    assert [
        found
        for found in re.findall(r"`((?:vpatch|docker|kubectl|pip|python3?|uvx?) [^`]+)`", prose)
        if len(found) > 50
    ] == []


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

"""The pages of first hours: a sentence before each step, screens of 80 columns; and how they are recorded."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from markdown_it import MarkdownIt

from tests.docs.recipe import Printed
from tests.docs.registry import PYTHON, WALKS
from tests.paths import ROOT
from tests.walks import CONSOLE, recorded

DIFF = re.compile(r"^(?:--- \S+\n\+\+\+ \S+|@@ .* @@.*)\n(?:[ +@-].*\n|\n)*", re.MULTILINE)


def test_each_walk_is_run_and_is_on_the_site() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/walks").iterdir()}

    assert names == {*WALKS}
    assert [page for page in WALKS if page.removeprefix("docs/") not in (ROOT / "mkdocs.yml").read_text()] == []


@pytest.mark.parametrize("page", WALKS)
def test_a_sentence_says_why_before_each_step(page: str) -> None:
    tokens = [token for token in MarkdownIt().parse((ROOT / page).read_text()) if token.content or token.map]
    kinds = [(above.type, above.content) for above, token in pairwise(tokens) if token.type == "fence"]

    assert len(kinds) >= 5
    assert [kind for kind, _ in kinds if kind not in ("inline", "html_block")] == []
    assert [text for kind, text in kinds if kind == "inline" and not text.endswith(":")] == []


@pytest.mark.parametrize("page", WALKS)
def test_a_screen_has_80_columns(page: str) -> None:
    """A diff has vLLM's own lines, and the terminal breaks them."""
    blocks = "".join(DIFF.sub("", block) for block in CONSOLE.findall((ROOT / page).read_text()))

    assert [line for line in blocks.splitlines() if len(line) > 80] == []


def test_a_screen_is_recorded_only_where_it_is_another_one() -> None:
    page = "Look:\n\n```console\n$ one\na ... c\n$ two \\\n>   more\nold\n$ three\n```\n\nSee.\n"
    screens = ["a b c\n", f"new in 1.25 s, {PYTHON['python3.12']}\n", ""]
    printed = [Printed("", "", old, new) for old, new in zip(["a ... c\n", "old\n", ""], screens, strict=True)]

    assert recorded(page, printed) == page.replace("old", "new in ..., python3.12")
    with pytest.raises(AssertionError, match="as many commands"):
        recorded(page, [*printed, printed[0]])

"""The fenced blocks of a page of the documentation, and what the comment above each says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

from tests.paths import ROOT


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        where: the page and the line of its fence, as `docs/faq.md:12`.
        language: the word behind the fence.
        text: what is between the fences.
        mark: the HTML comment that ends on the line above the fence, if any: `not tested: needs a GPU`.
    """

    where: str
    language: str
    text: str
    mark: str

    @property
    def is_shell(self) -> bool:
        """Whether it has commands for readers to run."""
        return self.language in {"sh", "bash", "shell", "console"}

    @property
    def reason(self) -> str | None:
        """Why it is not tested; None if it is."""
        word, colon, reason = self.mark.partition(":")
        return reason.strip() if (word, colon) == ("not tested", ":") else None


def blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order; of a block of Markdown, the blocks in it."""
    yield from _blocks(page.read_text("utf-8"), page.relative_to(ROOT).as_posix(), 0)


def _blocks(text: str, page: str, skipped: int) -> Iterator[Block]:
    above = None
    for token in MarkdownIt().parse(text):
        if token.type == "fence" and token.map:
            line, language = token.map[0] + 1, token.info.partition(" ")[0]
            if language == "markdown":
                yield from _blocks(token.content, page, skipped + line)
            else:
                comment = above.content if above and above.map and above.map[1] == line - 1 else ""
                mark = re.search(r"<!--((?:(?!-->).)*)-->\s*\Z", comment, re.DOTALL)
                words = " ".join(mark[1].split()) if mark else ""
                yield Block(f"{page}:{skipped + line}", language, token.content, words)
        above = token if token.type == "html_block" else None

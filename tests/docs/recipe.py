"""The fenced blocks of a page, run in order as a reader would: files written, commands run, printed output compared.

What a block is, the comment above it or its language says:

- `<!-- file: NAME -->`: the content of a file, which is written;
- `<!-- no network -->`: commands, which run without any network;
- `<!-- not tested: REASON -->`, or a name in `registry.BY_NAME`: passed over;
- `sh`: commands, each of which must succeed;
- `console`: commands behind `$ `, each followed by what it prints, where `...` stands for anything.

All commands run in one shell. What else is in a page, such as YAML without a comment, is for other tests.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

from tests.docs.registry import BY_NAME, Recipe
from tests.paths import ROOT
from tests.processes import PATIENCE


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


def run(page: str, recipe: Recipe, folder: Path, machine: Mapping[str, str]) -> None:
    """Run a page in a new folder, with a home of its own beside it.

    Every text that the recipe replaces must be on the page.
    """
    text = (ROOT / page).read_text("utf-8")
    missing = [old for old in recipe.replace if old not in text]
    assert not missing, f"not on {page}: {missing}"
    state, home = folder.with_name(f"{folder.name}-state"), folder.with_name(f"{folder.name}-home")
    for new in (folder, state, home):
        new.mkdir()
    script, printed = ["set -euo pipefail", f"echo before > {state}/at", recipe.before], dict[Path, tuple[str, str]]()
    for block in blocks(ROOT / page):
        if block.reason is None and (page, block.mark) not in BY_NAME:
            replaced = block.text
            for old, new_text in recipe.replace.items():
                replaced = replaced.replace(old, new_text)
            script.append(f"echo {shlex.quote(block.where)} > {state}/at")
            script += _steps(block, state, replaced, printed)
    ran = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder,
        env={**machine, "HOME": str(home), "PATH": f"{home}/.local/bin:{machine['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=3 * PATIENCE,
        check=False,
    )
    at = (state / "at").read_text().strip()
    assert ran.returncode == 0, f"{at} exits with {ran.returncode}:\n{ran.stdout}"
    for file, (what, expected) in printed.items():
        pattern = re.escape(expected).replace(re.escape("..."), ".*")
        found = file.read_text("utf-8")
        assert re.fullmatch(pattern, found, re.DOTALL), f"{what} prints:\n{found}"


def _steps(block: Block, state: Path, text: str, printed: dict[Path, tuple[str, str]]) -> Iterator[str]:
    """Yield lines of the script for one block; note by file what it has to print."""
    kind, _, name = block.mark.partition(": ")
    if kind == "file":
        yield f"mkdir -p {shlex.quote(str(Path(name).parent))}"
        yield f"printf %s {shlex.quote(text)} > {shlex.quote(name)}"
    elif block.language == "console":
        yield "set +e"
        parts = re.split(r"^\$ (.*\n(?:> .*\n)*)", text, flags=re.MULTILINE)
        assert parts[0] == "", "a console block begins with `$ `"
        for lines, expected in zip(parts[1::2], parts[2::2], strict=True):
            command, file = re.sub(r"^> ", "", lines, flags=re.MULTILINE).strip(), state / f"{len(printed)}.out"
            printed[file] = f"{block.where}: `{command}`", expected
            yield f"{{ {command}\n}} > {file} 2>&1"
        yield "set -e"
    elif block.is_shell and kind == "no network":
        yield f"unshare --net bash -euo pipefail -c {shlex.quote(_strict(text))}"
    elif block.is_shell:
        yield _strict(text)


def _strict(text: str) -> str:
    """Let the shell exit where `a && b` fails, too: `set -e` overlooks a failing `a`."""
    lines = re.split(r"(?<!\\)(?<!&&)\n", text)
    return "\n".join(f"{{ {line}\n}} || exit" if "&&" in line else line for line in lines)

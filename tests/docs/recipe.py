"""The fenced blocks of a page, run in order as a reader would: files written, commands run, printed output compared.

What a block is, the comment above it or its language says:

- `<!-- file: NAME -->`: the content of a file, which is written;
- `<!-- no network -->`: commands, which run without any network;
- `<!-- not tested: REASON -->`, or a name in `registry.BY_NAME`: passed over;
- `sh`: commands, each of which must succeed;
- `console`: commands behind `$ `, each followed by what it prints, where `...` stands for anything.

All commands run in one shell; on a terminal of 80 columns, if the recipe says so. What else is in a page, such as YAML
without a comment, is for other tests.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

from tests.docs.registry import BY_NAME, Recipe
from tests.paths import ROOT
from tests.processes import PATIENCE
from tests.terminals import drained, screen

COMMAND = re.compile(r"^\$ (.*\n(?:> .*\n)*)", re.MULTILINE)
"""A command in a `console` block, with the lines that continue it."""

TERMINAL = {"TERM": "xterm-256color", "COLUMNS": "80", "GIT_PAGER": "cat", "UV_NO_PROGRESS": "1"}


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


class Printed(NamedTuple):
    """A command of a `console` block: where it is, what the page has it print, and what it printed."""

    where: str
    command: str
    expected: str
    found: str

    @property
    def as_expected(self) -> bool:
        """Whether it printed what the page has, where `...` stands for anything."""
        pattern = re.escape(self.expected).replace(re.escape("..."), ".*")
        return bool(re.fullmatch(pattern, self.found, re.DOTALL))


def run(page: str, recipe: Recipe, folder: Path, machine: Mapping[str, str]) -> None:
    """Run a page in a new folder, with a home of its own beside it, and compare what it prints."""
    for one in played(page, recipe, folder, machine):
        assert one.as_expected, f"{one.where}: `{one.command}` prints:\n{one.found}"


def played(page: str, recipe: Recipe, folder: Path, machine: Mapping[str, str]) -> list[Printed]:
    """Run a page in a new folder, with a home of its own beside it; return what its console blocks printed.

    Every text that the recipe replaces must be on the page.
    """
    text = (ROOT / page).read_text("utf-8")
    missing = [old for old in recipe.replace if old not in text]
    assert not missing, f"not on {page}: {missing}"
    state, home = folder.with_name(f"{folder.name}-state"), folder.with_name(f"{folder.name}-home")
    for new in (folder, state, home):
        new.mkdir()
    script, steps = ["set -euo pipefail", f"echo before > {state}/at", recipe.before], list[Printed]()
    for block in blocks(ROOT / page):
        if block.reason is None and (page, block.mark) not in BY_NAME:
            replaced = block.text
            for old, new_text in recipe.replace.items():
                replaced = replaced.replace(old, new_text)
            script.append(f"echo {shlex.quote(block.where)} > {state}/at")
            script += _steps(block, replaced, steps)
    about = {**machine, "HOME": str(home), "PATH": f"{home}/.local/bin:{machine['PATH']}"}
    run_by = _on_terminal if recipe.terminal else _on_pipe
    code, output = run_by("\n".join(script), folder, about)
    at = (state / "at").read_text().strip()
    assert code == 0, f"{at} exits with {code}:\n{output}"
    found = re.findall(f"{_BEGIN}(.*?){_END}", output, re.DOTALL)
    if recipe.terminal:
        found = [f"{whole}\n" if (whole := "\n".join(screen(raw, _ENDLESS))) else "" for raw in found]
    return [step._replace(found=one) for step, one in zip(steps, found, strict=True)]


_BEGIN, _END = "\x1e", "\x1f"  # around what a command prints
_ENDLESS = 100_000  # columns: a line that the terminal would break stays one line


def _on_pipe(script: str, folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=3 * PATIENCE,
        check=False,
    )
    return ran.returncode, ran.stdout


def _on_terminal(script: str, folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    with ThreadPoolExecutor(1) as pool:
        seen = pool.submit(drained, ours)
        try:
            ran = subprocess.run(
                ["bash", "-c", script],
                cwd=folder,
                env={**environment, **TERMINAL},
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                timeout=3 * PATIENCE,
                check=False,
            )
        finally:
            os.close(theirs)
    return ran.returncode, seen.result().decode("utf-8", "replace")


def _steps(block: Block, text: str, printed: list[Printed]) -> Iterator[str]:
    """Yield lines of the script for one block; note the commands that have to print something."""
    kind, _, name = block.mark.partition(": ")
    if kind == "file":
        yield f"mkdir -p {shlex.quote(str(Path(name).parent))}"
        yield f"printf %s {shlex.quote(text)} > {shlex.quote(name)}"
    elif block.language == "console":
        yield "set +e"
        parts = COMMAND.split(text)
        assert parts[0] == "", "a console block begins with `$ `"
        for lines, expected in zip(parts[1::2], parts[2::2], strict=True):
            command = re.sub(r"^> ", "", lines, flags=re.MULTILINE).strip()
            printed.append(Printed(block.where, command, expected, ""))
            yield f"printf '\\036'\n{{ {command}\n}} 2>&1\nprintf '\\037'"
        yield "set -e"
    elif block.is_shell and kind == "no network":
        yield f"unshare --net bash -euo pipefail -c {shlex.quote(_strict(text))}"
    elif block.is_shell:
        yield _strict(text)


def _strict(text: str) -> str:
    """Let the shell exit where `a && b` fails, too: `set -e` overlooks a failing `a`."""
    lines = re.split(r"(?<!\\)(?<!&&)\n", text)
    return "\n".join(f"{{ {line}\n}} || exit" if "&&" in line else line for line in lines)

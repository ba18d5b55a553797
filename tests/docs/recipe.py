"""Run the blocks of a page, in order, as a reader would: files are written, commands run, printed output compared.

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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.docs.page import Block, blocks
from tests.docs.registry import BY_NAME, Recipe
from tests.paths import ROOT
from tests.processes import PATIENCE


@dataclass(frozen=True)
class Printed:
    """What a page says that a command prints; `file` has what it did print."""

    where: str
    command: str
    expected: str
    file: Path

    def check(self) -> None:
        """Compare, with `...` for anything."""
        pattern = re.escape(self.expected).replace(re.escape("..."), ".*")
        found = self.file.read_text("utf-8")
        assert re.fullmatch(pattern, found, re.DOTALL), f"{self.where}: `{self.command}` prints:\n{found}"


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
    script, printed = ["set -euo pipefail", f"echo before > {state}/at", recipe.before], list[Printed]()
    for block in blocks(ROOT / page):
        if block.reason is None and (page, block.mark) not in BY_NAME:
            script.append(f"echo {shlex.quote(block.where)} > {state}/at")
            script += _steps(block, state, _replacing(recipe.replace, block.text), printed)
    path = f"{home}/.local/bin:{machine['PATH']}"
    ran = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=folder,
        env={**machine, "HOME": str(home), "PATH": path},
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
    for one in printed:
        one.check()


def _replacing(replace: Mapping[str, str], text: str) -> str:
    for old, new in replace.items():
        text = text.replace(old, new)
    return text


def _steps(block: Block, state: Path, text: str, printed: list[Printed]) -> Iterator[str]:
    """Yield lines of the script for one block; note what it has to print."""
    kind, _, name = block.mark.partition(": ")
    if kind == "file":
        yield f"mkdir -p {shlex.quote(str(Path(name).parent))}"
        yield f"printf %s {shlex.quote(text)} > {shlex.quote(name)}"
    elif block.language == "console":
        yield "set +e"
        for command, expected in _commands(text):
            one = Printed(block.where, command, expected, state / f"{len(printed)}.out")
            printed.append(one)
            yield f"{{ {command}\n}} > {one.file} 2>&1"
        yield "set -e"
    elif block.is_shell and kind == "no network":
        yield f"unshare --net bash -euo pipefail -c {shlex.quote(_strict(text))}"
    elif block.is_shell:
        yield _strict(text)


def _strict(text: str) -> str:
    """Let the shell exit where `a && b` fails, too: `set -e` overlooks a failing `a`."""
    lines = re.split(r"(?<!\\)(?<!&&)\n", text)
    return "\n".join(f"{{ {line}\n}} || exit" if "&&" in line else line for line in lines)


def _commands(text: str) -> Iterable[tuple[str, str]]:
    """Split a `console` block into commands, with what each prints."""
    parts = re.split(r"^\$ (.*\n(?:> .*\n)*)", text, flags=re.MULTILINE)
    assert parts[0] == "", "a console block begins with `$ `"
    commands = (re.sub(r"^> ", "", command, flags=re.MULTILINE).strip() for command in parts[1::2])
    return zip(commands, parts[2::2], strict=True)

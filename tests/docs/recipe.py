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
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.docs.page import Block, blocks
from tests.docs.registry import BY_NAME, Recipe
from tests.paths import ROOT
from tests.processes import PATIENCE


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

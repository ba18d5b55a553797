"""Carry changes from one vLLM to another, by patch files and by what people use now, where the right result is known.

    python -m benchmarks.porting [--cells N] [--seed N]

A cell is made of two releases, A and B, and some lines that differ in one function of a module, g. The patch is what
leads from A to A with g. It is carried to B without g: the right result is B. Then it is carried to B itself, where it
must be seen to be there. A result is right if it is the same program. The exit code is 1 if one of vpatch is wrong.
"""

from __future__ import annotations

import argparse
import ast
import random
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path

from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued
from vpatch.core.patch_file import PatchFile, overlay_of
from vpatch.core.verdict import State
from vpatch.porting.program import difference
from vpatch.porting.proof import ModuleVersions, Unproven, patch_file

from tests.releases import RELEASES, tree_of

FURTHER = (("0.20.2", "0.24.0"), ("0.21.0", "0.26.0"), ("0.26.0", "0.31.0"), ("0.31.0", "0.33.0"))
"""Pairs of releases that are further apart than neighbors."""
PAIRS = (*pairwise(RELEASES), *FURTHER)
LINES, BYTES = 60, range(3_000, 90_000)
"""The most lines of a change, and the sizes of modules."""


@dataclass(frozen=True)
class Cell:
    """A change of one module, and where it is carried to."""

    file: str
    releases: tuple[str, str]
    before: str
    after: str
    target: str
    truth: str


def main() -> None:
    """Measure, and print a table."""
    found: dict[str, Counter[str]] = {}
    wrong = 0
    for cell in cells_of_options(options(__doc__, 200).parse_args()):
        for name, (carried, again) in {"vpatch": by_vpatch(cell), **by_lines(cell)}.items():
            found.setdefault(name, Counter()).update([f"carried: {carried}", f"already there: {again}"])
            if name == "vpatch" and carried != "right":
                print(f"{cell.file}, {' -> '.join(cell.releases)}: {carried}, {again}")
                wrong += carried == "wrong" or again == "changed again"
    for name, counts in found.items():
        print(f"{name:14}", ", ".join(f"{what} {count}" for what, count in sorted(counts.items())))
    raise SystemExit(bool(wrong))


def by_vpatch(cell: Cell) -> tuple[str, str]:
    """Carry a cell's change by a patch file; return what came of it, and of carrying it to where it is."""
    try:
        engine = Engine([Catalogued("fix", overlay_of(patch_of(cell)), "")])
    except Unproven as error:
        return f"no patch file ({error})", "no patch file"
    made = engine.plan(reader(cell.releases[1], cell.file, cell.target))
    state = made.before[0].state
    carried = f"refused ({made.before[0].state}: {made.before[0].because})"
    if state is State.PENDING:
        carried = outcome(made.files[cell.file].decode(), cell)
    (there,) = engine.status(reader(cell.releases[1], cell.file, cell.truth))
    return carried, {State.MERGED: "merged", State.PENDING: "changed again"}.get(there.state, "refused")


def options(told: str | None, cells: int) -> argparse.ArgumentParser:
    """Return a parser of the options that say which cells to draw; `cells` is how many by default."""
    parser = argparse.ArgumentParser(description=told, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=cells)
    parser.add_argument("--seed", type=int, default=44)
    return parser


def cells_of_options(arguments: argparse.Namespace) -> list[Cell]:
    """Draw the cells that options ask for."""
    return drawn(random.Random(arguments.seed), arguments.cells)  # noqa: S311 - it is to be repeatable


def patch_of(cell: Cell, name: str = "fix") -> PatchFile:
    """Return the patch file of a cell's change.

    Raises:
        Unproven: there can be none.
    """
    read = reader(cell.releases[0], cell.file, cell.before)
    changes = (ModuleVersions(cell.file, cell.before, cell.after),)
    return patch_file(name, {"Subject": "A change", "Base": cell.releases[0]}, changes, read)[0]


def write_patches(folder: Path, count: int, pair: tuple[str, str]) -> None:
    """Write a number of patch files to a folder, each of another module of the first release of a pair."""
    for cell in drawn(random.Random(44), 2 * count, [pair]):  # noqa: S311 - it is to be repeatable
        if (done := len(list(folder.iterdir()))) == count:
            break
        with suppress(Unproven):
            (folder / f"change-{done}.vpatch").write_text(str(patch_of(cell, f"change-{done}")))


def by_lines(cell: Cell) -> dict[str, tuple[str, str]]:
    """Carry a cell's change by tools for lines."""
    tools: dict[str, Callable[[Path, str], str | None]] = {
        "git apply": lambda at, text: ran(at, text, "git", "apply", "change.diff"),
        "patch -F2": lambda at, text: ran(at, text, "patch", "-p1", "-F2", "-s", "-f", "-i", "change.diff"),
        "git merge-file": lambda at, text: ran(at, text, "git", "merge-file", "module.py", "before.py", "after.py"),
    }
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        write_diff(at, cell)
        for name, tool in tools.items():
            result, again = tool(at, cell.target), tool(at, cell.truth)
            carried = "refused" if result is None else outcome(result, cell)
            twice = "refused" if again is None else "merged" if not difference(again, cell.truth) else "changed again"
            found[name] = carried, twice
        back = ran(at, cell.truth, "git", "apply", "-R", "change.diff")
        found["git apply -R"] = "not tried", "refused" if back is None else "merged"
    return found


def write_diff(at: Path, cell: Cell) -> None:
    """Write a cell's change as `change.diff` of `module.py`, with the module `before.py` and `after.py` it."""
    (at / "before.py").write_text(cell.before)
    (at / "after.py").write_text(cell.after)
    diff = subprocess.run(
        ["git", "diff", "--no-index", "before.py", "after.py"],  # noqa: S607 - the rival
        cwd=at,
        capture_output=True,
        check=False,
    )
    text = diff.stdout.replace(b"a/before.py", b"a/module.py").replace(b"b/after.py", b"b/module.py")
    (at / "change.diff").write_bytes(text)


def ran(at: Path, text: str, *command: str) -> str | None:
    """Return a module after a command changed it, None if the command failed."""
    (at / "module.py").write_text(text)
    done = subprocess.run(command, cwd=at, capture_output=True, check=False)
    return None if done.returncode else (at / "module.py").read_text()


def outcome(result: str, cell: Cell) -> str:
    """Return whether a result is the right program."""
    try:
        return "wrong" if difference(result, cell.truth, cell.target) else "right"
    except SyntaxError:
        return "wrong"


def reader(release: str, file: str, text: str) -> Callable[[str], bytes | None]:
    """Return what reads a release in which one module has another text."""
    root = tree_of(release)

    def read(path: str) -> bytes | None:
        if path == file:
            return text.encode()
        return (root / path).read_bytes() if (root / path).is_file() else None

    return read


def drawn(chance: random.Random, count: int, pairs: Sequence[tuple[str, str]] = PAIRS) -> list[Cell]:
    """Draw cells: from each pair of releases in turn, and from each module at most one."""
    todo = {pair: chance.sample(files := common(*pair), len(files)) for pair in pairs}
    cells: list[Cell] = []
    while len(cells) < count and any(todo.values()):
        for pair in chance.sample(pairs, len(pairs)):
            while todo[pair] and len(cells) < count:
                if cell := next(cells_of(chance, todo[pair].pop(), pair), None):
                    cells.append(cell)
                    break
    return cells


def common(one: str, other: str) -> list[str]:
    """Return the modules that two releases have, and that differ."""
    roots = tree_of(one), tree_of(other)
    names = (sorted(str(path.relative_to(root)) for path in (root / "vllm").rglob("*.py")) for root in roots)
    both = set(next(names)) & set(next(names))
    sizes = ((name, (roots[0] / name).stat().st_size) for name in sorted(both))
    return [
        name for name, size in sizes if size in BYTES and texts(name, (one, other))[0] != texts(name, (one, other))[1]
    ]


def texts(file: str, pair: tuple[str, str]) -> tuple[str, str]:
    """Return the text of a module in two releases."""
    one, other = ((tree_of(release) / file).read_text() for release in pair)
    return one, other


def cells_of(chance: random.Random, file: str, pair: tuple[str, str]) -> Iterator[Cell]:
    """Yield the cells of a module: of each function some of the lines that changed in it."""
    old, new = (text.splitlines(keepends=True) for text in texts(file, pair))
    codes = [code for code in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if code[0] != "equal"]
    spans = [*functions(ast.parse("".join(new)))]
    for first, last in chance.sample(spans, len(spans)):
        inside = [k for k, (*_, j1, j2) in enumerate(codes) if first <= j1 and j2 <= last and (j2 > j1 or j1 < last)]
        if not inside or len(codes) < 3:
            continue
        chosen = set(inside if chance.random() < 0.5 else chance.sample(inside, max(1, len(inside) // 2)))
        size = sum(i2 - i1 + j2 - j1 for k, (_, i1, i2, j1, j2) in enumerate(codes) if k in chosen)
        if len(chosen) == len(codes) or size > LINES:
            continue
        before, truth = "".join(old), "".join(new)
        after, target = (mixed(old, new, codes, take) for take in (chosen, set(range(len(codes))) - chosen))
        try:
            if difference(after, before):
                ast.parse(target)
                yield Cell(file, pair, before, after, target, truth)
        except SyntaxError:
            continue


def mixed(
    old: Sequence[str], new: Sequence[str], codes: Sequence[tuple[str, int, int, int, int]], take: set[int]
) -> str:
    """Return a text with some of the changes that lead to another."""
    found, done = [], 0
    for k, (_, i1, i2, j1, j2) in enumerate(codes):
        found += [*old[done:i1], *(new[j1:j2] if k in take else old[i1:i2])]
        done = i2
    return "".join([*found, *old[done:]])


def functions(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """Yield the lines of each function that is not in another."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield min([node.lineno, *(one.lineno for one in node.decorator_list)]) - 1, node.end_lineno or node.lineno
        elif isinstance(node, ast.ClassDef):
            yield from functions(node)


if __name__ == "__main__":
    main()

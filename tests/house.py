"""Measure the sources: `python -m tests.house [FOLDER...]` prints lines, files, repetitions. ruff limits complexity.

A private function is *named once* if no other place in its module names it than the one that calls it: a reader
has to jump there, and gains nothing unless its name says more than its body.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tests.paths import ROOT

SHARED = 8
"""How many equal lines make two places a repetition."""

NOTHING = re.compile(r"""\s*(?:#.*|[\])}(\[{,:]*|(?:from|import)\s.*|"{3}.*)$""")
"""Lines that repeat without a cause: empty, comments, brackets, imports, docstrings."""


def sources(folder: Path) -> Mapping[Path, str]:
    """Return the text of each module below a folder."""
    return {path: path.read_text() for path in sorted(folder.rglob("*.py"))}


def named_once(texts: Mapping[Path, str]) -> tuple[Sequence[str], int]:
    """Return the private functions that one place names, and how many private functions there are."""
    once, count = [], 0
    for path, text in texts.items():
        tree = ast.parse(text)
        used = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and re.match("_[^_]", node.name):
                count += 1
                if used[node.name] == 1:
                    once.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    return once, count


def repetitions(texts: Mapping[Path, str]) -> Sequence[tuple[str, str]]:
    """Return the pairs of places that share at least `SHARED` lines, each by where it begins."""
    places = defaultdict(list)
    for path, text in texts.items():
        lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if not NOTHING.match(line)]
        for at in range(len(lines) - SHARED + 1):
            run = lines[at : at + SHARED]
            places[tuple(line for _, line in run)].append((path, run[0][0]))
    return list(_beginnings(found for found in places.values() if len(found) > 1))


def _beginnings(repeated: Iterator[Sequence[tuple[Path, int]]]) -> Iterator[tuple[str, str]]:
    """Yield the first pair of each run of overlapping pairs."""
    pairs = sorted(pair for found in repeated for pair in pairwise(found))
    last: dict[tuple[Path, Path], int] = {}
    for (one, at), (other, also) in pairs:
        if at > last.get((one, other), -SHARED) + SHARED:
            yield f"{one.relative_to(ROOT)}:{at}", f"{other.relative_to(ROOT)}:{also}"
        last[one, other] = at


def main(*folders: str) -> None:
    """Print a row for each folder."""
    for folder in folders or ("builder", "patches", "tests", "benchmarks"):
        texts = sources(ROOT / folder)
        lines = {path: text.count("\n") for path, text in texts.items()}
        longest = max(lines, key=lambda path: lines[path])
        once, private = named_once(texts)
        sys.stdout.write(
            f"{folder}: {sum(lines.values()):,} lines in {len(lines)} files, longest {lines[longest]} "
            f"({longest.relative_to(ROOT)}); private functions named once: {len(once)} of {private}; "
            f"repetitions: {len(repetitions(texts))}\n"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

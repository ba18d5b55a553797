"""Make line diffs by git and diff, as people do, and read them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path

from vpatch.porting.diffs import FileDiff, LineChange, parse
from vpatch.porting.kept import kept

Texts = Mapping[str, str]
FILE, OTHER = "vllm/sequence.py", "vllm/logger.py"
"""Two small modules."""
ADDED = ("import torch\n", "import torch\n\nLAYERS = 61\n")
"""Of the first, what a change replaces, and by what."""


def diff(before: str, after: str, path: str = FILE) -> str:
    """Return a unified diff of two texts of a module."""
    names = f"a/{path}", f"b/{path}"
    return "".join(unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), *names))


def text_of(tree: Path, path: str = FILE) -> str:
    """Return the text of a module."""
    return (tree / path).read_text()


def write(folder: Path, texts: Texts) -> None:
    """Write files, whose line ends stay as they are."""
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def differences(folder: Path, *command: str) -> str:
    """Run git or diff in a folder, which end with 1 where files differ; return what it prints."""
    ran = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    return ran.stdout.decode()


def git_diff(folder: Path, old: Texts, new: Texts, *options: str) -> str:
    """Return git's diff of two versions of some files; a file that one of them lacks is added or deleted."""
    write(folder / "old", old)
    write(folder / "new", new)
    return differences(folder, "git", "-c", "core.autocrlf=false", "diff", "--no-index", *options, "old", "new")


def change_of(text: str) -> LineChange:
    """Return the one change of a diff."""
    (change,) = changes_of(parse(text))
    return change


def changes_of(files: tuple[FileDiff, ...]) -> tuple[LineChange, ...]:
    """Return the changes of a diff from which nothing is left out."""
    changes, left_out = kept(files, "fix.patch", python_only=False)
    assert not left_out
    return changes

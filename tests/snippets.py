"""Helpers for tests of the engine and the edits: made-up modules, overlays of one part, and assertions on them."""

from __future__ import annotations

import builtins
import re
import string
from collections.abc import Callable, Mapping
from itertools import permutations
from textwrap import dedent

import pytest
from vpatch.core.authoring import Block
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued, Edit, Overlay, Part, Predicate, Shape
from vpatch.core.verdict import Changeset, State, Verdict

FILE = "vllm/m.py"
M = "  # vpatch: demo"
"""The mark on what `overlay` changes."""

Files = Mapping[str, bytes]


def _word(name: str) -> Callable[..., Edit]:
    """Return a function that makes the edit of one of a block's words: of a file, a scope and what the word takes."""

    def edit(file: str, scope: str, *given: str, within: tuple[str, ...] = (), **more: object) -> Edit:
        made: Edit = getattr(Block(file, scope, within), name)(*given, **more)
        return made

    return edit


InsertAfter, InsertBefore = _word("insert_after"), _word("insert_before")
ReplaceStatements, DeleteStatements = _word("replace_statements"), _word("delete")
ReplaceExpr, AddKeyword = _word("replace_expression"), _word("add_keyword")


def header(file: str, scope: str, old: str, new: str, count: int = 1) -> Edit:
    """Return the edit of the header of a definition in a scope."""
    (edit,) = Block(file, scope).patch(f"-{old}:\n+{new}:\n     ...", count=count)
    return edit


@pytest.fixture(autouse=True)
def names_of_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make builtins of the names that fragments of code read, so that they need no definitions."""
    for name in (*string.ascii_letters, "clamp", "log", "new"):
        monkeypatch.setattr(builtins, name, None, raising=False)


def module(text: str) -> Files:
    """Return a tree with one module."""
    return {FILE: dedent(text).lstrip("\n").encode()}


def overlay(
    *edits: Edit,
    name: str = "demo",
    when: Predicate | None = None,
    merged: Predicate | None = None,
    absent: Predicate | None = None,
) -> Catalogued:
    """Return an overlay of one part with one shape."""
    part = Part("part", (Shape("1.0", edits, when),), merged, absent)
    return Catalogued(name, Overlay(f"The overlay {name}.", (part,), ("o/r#1",)), "")


def make(files: Files, *items: Catalogued) -> Changeset:
    """Plan overlays on a tree."""
    return Engine(items).plan(files.get)


def applied(files: Files, *items: Catalogued) -> Files:
    """Apply overlays to a tree; assert that a second run changes nothing."""
    changeset = make(files, *items)
    assert not changeset.problems, "\n".join(map(str, changeset.problems))
    assert all(verdict.state is State.APPLIED for verdict in changeset.after)
    new = {**files, **changeset.files}
    again = make(new, *items)
    assert again.files == {}
    assert [verdict.state for verdict in again.before] == [State.APPLIED] * len(items)
    for file, data in changeset.files.items():
        compile(data, file, "exec", dont_inherit=True)
    return new


def in_any_order(files: Files, *items: Catalogued) -> Files:
    """Apply overlays together, and one after another in every order; assert that the trees are equal."""
    together = applied(files, *items)
    for order in permutations(items):
        tree = files
        for item in order:
            tree = applied(tree, item)
        assert tree == applied(files, *order) == together
    return together


def verdict(files: Files, item: Catalogued) -> Verdict:
    """Judge a tree by one overlay."""
    return Engine([item]).status(files.get)[0]


def becomes(before: str, edit: Edit, after: str) -> None:
    """Assert that an edit turns `before` into `after`, byte for byte, and that `after` without marks is `merged`."""
    old, new = module(before), module(after)
    item = overlay(edit)
    assert verdict(old, item).state is State.PENDING
    assert applied(old, item)[FILE].decode() == new[FILE].decode()
    merged = verdict(unmarked(new), item)
    assert merged.state is State.MERGED, merged.because


def changes(text: str, edit: Edit) -> None:
    """Assert that an edit makes a change, which is written with `|` between the lines.

    `-` begins a line that goes, `+` one that comes with the mark, and `>` one that comes without it.
    """
    before, after = "", ""
    for line in text.split("|"):
        before += "" if line[:1] in (">", "+") else f"{line.removeprefix('-')}\n"
        after += "" if line[:1] == "-" else f"{line[1:]}{M}\n" if line[:1] == "+" else f"{line.removeprefix('>')}\n"
    becomes(before, edit, after)


def unmarked(files: Files) -> Files:
    """Remove the marks from a tree."""
    return {file: re.sub(rb" *# vpatch: [a-z-]+", b"", data) for file, data in files.items()}


def drifts(source: str | Files, edit: Edit, message: str) -> None:
    """Assert that an edit is `drifted` for this reason."""
    files = module(source) if isinstance(source, str) else source
    changeset = make(files, overlay(edit))
    assert changeset.before[0].state is State.DRIFTED, changeset.before[0].because
    assert changeset.files == {}
    problems = "\n".join(map(str, changeset.problems))
    assert message in problems, problems

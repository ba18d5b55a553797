"""Pair the statements of two versions of a module, block by block."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from enum import Enum
from functools import cached_property
from typing import Any

from vpatch.core import nesting
from vpatch.core.edits.within import expressible, header_differs
from vpatch.core.parse import end_line, first_line, text_of
from vpatch.core.syntax import DEFINITIONS
from vpatch.porting.statements import is_edited

_TRIPLE = re.compile(r"\"{3}|'{3}")
_ALIKE = 0.5
"""Two blocks with so large a part in common are those of one statement, whose header changed."""


@dataclass(frozen=True)
class Version:
    """One version of a module, parsed."""

    text: str
    tree: ast.Module = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", nesting.parse(self.text))

    @cached_property
    def lines(self) -> Sequence[str]:
        """Its lines, without their ends."""
        return self.text.split("\n")

    @cached_property
    def ended(self) -> Sequence[str]:
        """Its lines, with their ends."""
        return [f"{line}\n" for line in self.lines]

    def rows(self, node: Any) -> Sequence[str]:
        """Return the lines of a statement."""
        return self.lines[first_line(node) - 1 : end_line(node)]


class Operation(Enum):
    """What happens to a statement."""

    SAME = "it stays"
    INNER = "something in its blocks changes"
    HEAD = "its header changes, and perhaps its blocks"
    WENT = "it goes"
    EDIT = "something in it changes, and it has no blocks"
    CAME = "it comes"


@dataclass(frozen=True, eq=False)
class Pairing:
    """A statement of the version before (`old`), after (`new`), or both."""

    kind: Operation
    old: Any = None
    new: Any = None

    @property
    def stays(self) -> bool:
        """Whether its header is context for what changes beside it."""
        return self.kind in {Operation.SAME, Operation.INNER}


@dataclass(frozen=True)
class Branch:
    """A header of a compound statement and its block.

    Attributes:
        word: what begins it: `if`, `elif`, `except`, `def` ...
        node: the node that has the header; None for `else` and `finally`.
        block: its statements.
    """

    word: str
    node: Any
    block: Sequence[ast.stmt]


def branches(version: Version, node: Any) -> tuple[Branch, ...]:
    """Return the branches of a compound statement; none of a simple one, of `match`, or of one on a single line."""
    match node:
        case ast.If():
            found = [Branch("if", node, node.body)]
            while _is_elif(version, node):
                node = node.orelse[0]
                found.append(Branch("elif", node, node.body))
        case ast.Try():
            found = [Branch("try", node, node.body)]
            found += [Branch("except", one, one.body) for one in node.handlers]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            found = [Branch("def", node, node.body)]
        case ast.For() | ast.AsyncFor() | ast.While() | ast.With() | ast.AsyncWith():
            found = [Branch("head", node, node.body)]
        case _:
            return ()
    found += [Branch("else", None, node.orelse)] if getattr(node, "orelse", None) else []
    found += [Branch("finally", None, node.finalbody)] if getattr(node, "finalbody", None) else []
    if any(version.lines[one.block[0].lineno - 1][: one.block[0].col_offset].strip() for one in found):
        return ()
    return tuple(found)


def _is_elif(version: Version, node: Any) -> bool:
    match node.orelse:
        case [ast.If() as inner]:
            return version.lines[inner.lineno - 1][inner.col_offset :].startswith("elif")
    return False


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring, or a text below an attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@dataclass(frozen=True)
class Alignment:
    """Pairs the statements of two versions."""

    before: Version
    after: Version

    def items(self, old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> list[Pairing]:
        """Pair the statements of two blocks; the docstrings in them do not count."""
        olds, news = ([node for node in some if not is_text(node)] for some in (old, new))
        mine, theirs = (["\n".join(v.rows(n)) for n in s] for v, s in ((self.before, olds), (self.after, news)))
        found: list[Pairing] = []
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes():
            if tag == "equal":
                found += [Pairing(Operation.SAME, *pair) for pair in zip(olds[i1:i2], news[j1:j2], strict=True)]
            else:
                found += self._of_other_text(olds[i1:i2], news[j1:j2])
        return found

    def _of_other_text(self, old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> Iterator[Pairing]:
        mine, theirs = ([ast.dump(node) for node in some] for some in (old, new))
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, mine, theirs, autojunk=False).get_opcodes():
            if tag == "equal":
                yield from (Pairing(Operation.SAME, *pair) for pair in zip(old[i1:i2], new[j1:j2], strict=True))
            else:
                yield from self._gap(old[i1:i2], new[j1:j2])

    def _gap(self, old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> Iterator[Pairing]:
        """Pair the compound statements between two places that are equal."""
        done = 0
        for node in old:
            at = next((k for k in range(done, len(new)) if self._is_one(node, new[k])), None)
            if at is None:
                yield Pairing(Operation.WENT, node)
                continue
            yield from (Pairing(Operation.CAME, None, one) for one in new[done:at])
            yield from self._pair(node, new[at])
            done = at + 1
        yield from (Pairing(Operation.CAME, None, one) for one in new[done:])

    def _is_one(self, old: Any, new: Any) -> bool:
        if type(old) is not type(new):
            return False
        if not branches(self.before, old) or not branches(self.after, new):
            return is_edited(old, new, self.before.rows(old), self.after.rows(new))
        if isinstance(old, DEFINITIONS):
            return bool(old.name == new.name)
        if not isinstance(old, ast.Try) and not header_differs(old, new):
            return True
        mine, theirs = ([ast.dump(node) for node in some.body] for some in (old, new))
        return SequenceMatcher(None, mine, theirs, autojunk=False).ratio() >= _ALIKE

    def _pair(self, old: Any, new: Any) -> Iterator[Pairing]:
        mine, theirs = branches(self.before, old), branches(self.after, new)
        if not mine and not theirs:
            yield Pairing(Operation.EDIT, old, new)
            return
        if [one.word for one in mine] != [one.word for one in theirs]:
            yield from (Pairing(Operation.WENT, old), Pairing(Operation.CAME, None, new))
            return
        heads = [(a.node, b.node) for a, b in zip(mine, theirs, strict=True) if a.node is not None]
        changed = [pair for pair in heads if header_differs(*pair)]
        if not isinstance(old, DEFINITIONS) and any(not expressible(*pair) for pair in changed):
            yield from (Pairing(Operation.WENT, old), Pairing(Operation.CAME, None, new))
            return
        yield Pairing(Operation.HEAD if changed else Operation.INNER, old, new)


def code_of(version: Version, nodes: Sequence[Any], indent: int) -> list[str]:
    """Return the lines of statements, moved to the left by `indent`; lines within texts stay where they are."""
    texts = (
        one
        for node in nodes
        for one in ast.walk(node)
        if isinstance(one, ast.Constant | ast.JoinedStr) and one.end_lineno != one.lineno
    )
    triple = (one for one in texts if _TRIPLE.search(text_of(version.ended, one)))
    within = {line for one in triple for line in range(one.lineno + 1, (one.end_lineno or one.lineno) + 1)}
    return [
        version.lines[k - 1] if k in within else re.sub(rf"^\s{{,{indent}}}", "", version.lines[k - 1])
        for k in range(first_line(nodes[0]), end_line(nodes[-1]) + 1)
    ]

"""Read a hunk: a change written as a diff, with an address in place of line numbers, whose lines are syntax.

A line that begins with a space is context, one with - goes, one with + comes. `...` stands for anything,
`$NAME` for one expression or name, and `^` in the first or last line for the edge of the block.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from io import StringIO
from typing import Any

from vpatch.core import nesting
from vpatch.core.edits.hunk import Aligned, Hunk, shown
from vpatch.core.edits.within import changes, expressible, header_differs
from vpatch.core.matching import META, is_hole
from vpatch.core.parse import end_line, first_line, header_text, text_of
from vpatch.core.syntax import DEFINITIONS

# A string literal or a comment, in which no `$NAME` counts, or such a name.
_VARIABLE = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*+"|\'(?:\\.|[^\'\\\n])*+\'|#[^\n]*+'
    r"|\$([A-Z][A-Z0-9_]*+)",
    re.DOTALL,
)


_TRIPLE = re.compile(r"\"{3}|'{3}")


def substituted(code: str, values: Mapping[str, str]) -> str:
    """Replace each `$NAME` outside strings and comments by its value, or by a name that Python can parse."""
    return _VARIABLE.sub(lambda found: values.get(found[1], META + found[1]) if found[1] else found[0], code)


@cache
def read(text: str, names: tuple[tuple[str, str], ...] = ()) -> Hunk:
    """Parse a hunk; `names` is the code of metavariables that the author knows.

    Raises:
        ValueError: it is no hunk; the message says why.
    """
    rows = [line or " " for line in text.strip("\n").split("\n")]
    if wrong := next((row for row in rows if row[0] not in " +-"), None):
        raise ValueError(f"a line of a hunk begins with a space, - or +, not as `{wrong}`")
    edges = [k for k, row in enumerate(rows) if row.strip() == "^"]
    used = [k for k, row in enumerate(rows) if row.strip() and k not in edges]
    if not any(rows[k][0] != " " for k in used):
        raise ValueError("nothing changes: no line begins with - or +")
    if any(used[0] < k < used[-1] for k in edges):
        raise ValueError("^ is the first or the last line of a hunk")
    before, after = _sides(rows, dict(names), edges)
    kept = {k for k in used if rows[k][0] == " "}
    top, bottom = any(k < used[0] for k in edges), any(k > used[-1] for k in edges)
    if free := _variables(after.body) - _variables(before.body):
        raise ValueError(f"nothing binds `{shown(min(free))}`")
    if swap := _expressions(before.body, after.body):
        if ast.dump(swap[0]) == ast.dump(swap[1]):
            comment = any(row[0] == "+" and row[1:].lstrip().startswith("#") for row in rows)
            raise ValueError("a comment alone cannot come" if comment else "nothing changes")
        return Hunk((), (), (), top, bottom, before.lines, after.lines, swap, within=bool(kept))
    if not before.body and not (top or bottom):
        raise ValueError("lines that come need a line of context, or are a function, a class or an import")
    items = _Alignment(before, after, kept, {k for k, row in enumerate(rows) if row[0] == "+"}).items()
    hunk = Hunk(tuple(before.body), tuple(after.body), items, top, bottom, before.lines, after.lines)
    if all(item.stays and not item.changes for item in hunk.every):
        raise ValueError("nothing changes")
    return hunk


def _expressions(before: Sequence[ast.stmt], after: Sequence[ast.stmt]) -> tuple[ast.expr, ast.expr] | None:
    """Return both sides of a hunk, if each is one expression."""
    match before, after:
        case [ast.Expr(value=one)], [ast.Expr(value=other)] if not (is_hole(before[0]) or is_hole(after[0])):
            return one, other
    return None


def _variables(rows: Sequence[ast.stmt]) -> set[str]:
    nodes = (node for row in rows for node in ast.walk(row))
    return {node.id for node in nodes if isinstance(node, ast.Name) and node.id.startswith(META)}


# Among entries, `...` needs a comma, and in a dict it is spelled as Python can read it.
_GAPS = (None, r"\1...,", r"\1**...,")
_GAP = re.compile(r"\A([ \t]*+)\.\.\.,?")


def _entry_gaps(code: str) -> Iterator[int]:
    """Yield the indices of the lines `...` that stand for entries: those in brackets."""
    depth, begun = 0, dict[int, int]()
    try:
        for token in tokenize.generate_tokens(StringIO(code).readline):
            begun.setdefault(token.start[0], depth)
            if token.type == tokenize.OP:
                depth += (token.string in "([{") - (token.string in ")]}")
    except (tokenize.TokenError, IndentationError):  # what is wrong, parsing says better
        pass
    yield from (k for k, line in enumerate(code.split("\n")) if _GAP.fullmatch(line) and begun.get(k + 1))


def _sides(rows: Sequence[str], names: Mapping[str, str], edges: Collection[int]) -> list[_Side]:
    first = SyntaxError()
    for gap in _GAPS:
        try:
            return [_Side(rows, signs, names, edges, gap) for signs in (" -", " +")]
        except SyntaxError as error:
            first = error if gap is None else first
        except nesting.Unparsable as error:
            raise ValueError(str(error)) from error
    line = (first.text or "").strip()
    hint = f"; {_OF_BRANCHES}" if _BRANCH.match(line) else ""
    raise ValueError(f"not valid Python once the signs are taken off: {first.msg}: `{shown(line)}`{hint}")


_BRANCH = re.compile(r"(?:elif|else|except|finally|case)\b")
_OF_BRANCHES = (
    "a branch stands below its statement, with `...` for the lines that stay, or in the address, as "
    "`@@ f / if a / elif b`"
)


class _Side:
    """The code before or after, with the row of the hunk that each of its lines comes from."""

    def __init__(
        self, rows: Sequence[str], signs: str, names: Mapping[str, str], edges: Collection[int], gap: str | None
    ) -> None:
        chosen = [k for k, row in enumerate(rows) if row[0] in signs and k not in edges]
        code = substituted("\n".join(rows[k][1:] for k in chosen), {})
        lines = code.split("\n")
        for k in _entry_gaps(code) if gap else ():
            if rows[chosen[k]][0] != "+":
                lines[k] = _GAP.sub(str(gap), lines[k])
        numbered = [
            (k, line) for k, row in zip(chosen, lines, strict=bool(chosen)) for line in filled(row, names).split("\n")
        ]
        self.rows = [k for k, _ in numbered]
        self.lines = tuple(f"{line}\n" for _, line in numbered)
        self.body = nesting.parse("".join(self.lines)).body

    def of(self, node: Any) -> set[int]:
        """Return the rows of a statement, handler or case."""
        return set(self.rows[first_line(node) - 1 : end_line(node)])

    def above(self, node: Any, *, blank: bool = False) -> list[int]:
        """Return the lines of the comments above a statement, and those of nothing."""
        first = last = first_line(node) - 1
        while first and self.lines[first - 1].strip()[:1] in ({"#", ""} if blank else {"#"}):
            first -= 1
        return list(range(first, last))


def filled(code: str, names: Mapping[str, str]) -> str:
    """Replace names that `substituted` made by the code that the author gives."""
    for name, value in names.items():
        code = re.sub(rf"\b{META}{name}\b", lambda _, value=value: value, code)  # type: ignore[misc]
    return code


class _Crossed(Exception):
    """A line of the context is in statements of the code before and after that are no pair."""


class _Alignment:
    """Pairs the statements that share a line of the context; the others go or come."""

    def __init__(self, before: _Side, after: _Side, kept: set[int], plus: set[int]) -> None:
        self._before, self._after, self._kept, self._plus = before, after, kept, plus

    def items(self) -> tuple[Aligned, ...]:
        """Return the items of the whole hunk."""
        try:
            return tuple(self._align(self._before.body, self._after.body))
        except _Crossed as crossed:
            raise _all_lines(crossed.args[0]) from crossed

    def _align(self, old: Sequence[ast.stmt], new: Sequence[ast.stmt]) -> Iterator[Aligned]:
        i = j = 0
        while i < len(old) or j < len(new):
            b, a = (old[i] if i < len(old) else None), (new[j] if j < len(new) else None)
            stays = self._before.of(b) & self._kept if b is not None else set()
            if b is not None and a is not None and stays & self._after.of(a):
                if any(self._after.rows[line] in self._plus for line in self._after.above(a)):
                    raise ValueError(f"a comment alone cannot come: `{_quoted(a)}` stays")
                yield from self._pair(b, a)
                i, j = i + 1, j + 1
            elif b is not None and not stays:
                if is_hole(b):
                    raise ValueError("`...` stands for what stays, so it cannot go")
                yield Aligned(b, None)
                i += 1
            elif a is not None and not self._after.of(a) & self._kept:
                yield self._coming(a)
                j += 1
            else:
                raise _Crossed(b or a)

    def _coming(self, node: ast.stmt) -> Aligned:
        side, first = self._after, first_line(node) - 1
        self._refuse_gaps(node, first + 1, end_line(node))
        indent = len(side.lines[first]) - len(side.lines[first].lstrip())
        texts = (one for one in ast.walk(node) if isinstance(one, ast.Constant | ast.JoinedStr))
        over_lines = (one for one in texts if _TRIPLE.search(text_of(side.lines, one)))
        in_text = {k for one in over_lines for k in range(one.lineno, one.end_lineno or 0)}
        above = [line for line in side.above(node, blank=True) if side.rows[line] in self._plus]
        lines = [(k, side.lines[k]) for k in (*above, *range(first, end_line(node)))]
        return Aligned(
            None, node, "".join(line if k in in_text else line[min(indent, len(line) - 1) :] for k, line in lines)
        )

    def _refuse_gaps(self, node: Any, first: int, last: int) -> None:
        """Refuse code that comes, in these lines, if `...` in the context stands for a part of it."""
        side = self._after
        kept = (line for line in range(first - 1, last) if side.rows[line] in self._kept)
        if any(_GAP.fullmatch(side.lines[line].strip().removeprefix("**")) for line in kept):
            raise ValueError(f"write all lines of `{_quoted(node)}`, without `...`: it comes as a whole")

    def _pair(self, b: Any, a: Any) -> Iterator[Aligned]:
        mine, theirs = list(_blocks(b)), list(_blocks(a))
        if [(type(b), ""), *((type(x), f) for x, f, _ in mine)] != [
            (type(a), ""),
            *((type(x), f) for x, f, _ in theirs),
        ]:
            raise _Crossed(b)
        if not mine:
            differs = ast.dump(b) != ast.dump(a)
            if differs and not expressible(b, a):
                yield from (Aligned(b, None), self._coming(a))
            else:
                for node in (one.new for one in changes(b, a) if one.new is not None) if differs else ():
                    value = node[1] if isinstance(node, tuple) else node
                    self._refuse_gaps(value, value.lineno, value.end_lineno)
                yield Aligned(b, a, changes=differs)
            return
        pairs = list(zip(mine, theirs, strict=True))
        heads = [(b, a), *((x, y) for (x, _, _), (y, _, _) in pairs if x is not b)]
        changed = [(x, y) for x, y in heads if header_differs(x, y)]
        if any(not isinstance(x, DEFINITIONS) and not expressible(x, y) for x, y in changed):
            raise _all_lines(b)
        try:
            blocks = [(x, field, tuple(self._align(xs, ys))) for (x, field, xs), (_, _, ys) in pairs]
        except _Crossed as crossed:
            raise _all_lines(b) from crossed
        branches = tuple(Aligned(x, y, changes=True) for x, y in changed if x is not b)
        yield Aligned(b, a, "", (b, a) in changed, (*blocks, (None, "", branches)) if branches else tuple(blocks))


def _all_lines(node: Any) -> ValueError:
    return ValueError(f"write all lines of `{_quoted(node)}` with - and +: its kind or its branches change")


def _blocks(node: Any) -> Iterator[tuple[Any, str, Sequence[ast.stmt]]]:
    """Yield the blocks of a statement: the node that has each, the field, and the statements."""
    for name in ("body", "orelse", "finalbody"):
        if isinstance(body := getattr(node, name, None), list) and body:
            yield node, name, body
    for branch in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield branch, "body", branch.body


def _quoted(node: Any) -> str:
    return shown((header_text(node) or ast.unparse(node)).splitlines()[0])

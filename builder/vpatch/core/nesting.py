"""Keep code from the parsers that nests too deeply, of which libcst would die, or that would take too much memory.

libcst 1.8 dies at about 2,000 nested brackets, 6,000 lambdas or 10,000 `and`s on a stack of 8 MiB. Python's own parser
has limits below most of these, which differ between its versions, and is ten times as fast, so it looks first. `elide`
needs its result anyway. The deepest syntax tree of a released vLLM has 28 levels.

What is measured is the decoded text, which is what libcst parses: a codec may make much code of few bytes.
"""

from __future__ import annotations

import ast
import codecs
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, islice
from typing import Any

LIMIT = 1000
"""Levels at most. libcst bears six times as many."""
TOKENS = 250_000
"""Words, signs and line ends of one module at most: four times as many as in the largest of a released vLLM."""
_TOLD = ("nested", "too many levels of indentation")
_TOKEN = re.compile(r"\w+|[^\w\s]|[\r\n]")
# Text in these comes back byte for byte. UTF-7, for one, has many spellings of the same text.
_ENCODINGS = frozenset({"utf-8", "utf-8-sig", "ascii", "iso8859-1"})


class Refused(Exception):
    """A module that libcst must not see; the text says why."""


class TooDeep(Refused):
    """Code that nests too deeply; says how, and in which line."""

    def __init__(self, line: int, how: str = "nested too deeply") -> None:
        super().__init__(f"not valid Python: {how} (line {line})")


def decode(data: bytes) -> tuple[str, str]:
    """Return a module's text, without a byte order mark, and the name of its encoding.

    Raises:
        Refused: the encoding is not UTF-8, ASCII or Latin-1.
        SyntaxError: there is no such encoding.
        UnicodeDecodeError: the bytes are not in that encoding.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    if codecs.lookup(encoding).name not in _ENCODINGS:
        raise Refused(f"not readable as text: its encoding is {encoding}, and vpatch reads UTF-8, ASCII and Latin-1")
    return data.decode(encoding), encoding


def bound(text: str) -> None:
    """Refuse a module whose syntax tree could take more than a gigabyte: libcst's has up to 4,200 bytes a token.

    Bytes would be a poor measure: a token of vLLM's largest module has six, one of the shortest code has one.

    Raises:
        Refused: it has more tokens than `TOKENS`.
    """
    if len(text) > TOKENS and next(islice(_TOKEN.finditer(text), TOKENS, None), None):
        raise Refused(f"too large: more than {TOKENS:,} tokens, the most that vpatch parses of a module")


def parse(text: str) -> ast.Module:
    """Parse a module, decoded, by Python's own parser.

    Raises:
        Refused: it is too large.
        TooDeep: libcst must not see it.
        SyntaxError: Python cannot parse it, and libcst may try: it may be of a newer Python.
        ValueError: as SyntaxError.
    """
    bound(text)
    try:
        tree = ast.parse(text)
    except (MemoryError, RecursionError) as error:
        raise TooDeep(max(_levels(text), default=(0, 1))[1]) from error
    except (SyntaxError, ValueError) as error:
        told = str(getattr(error, "msg", ""))
        if any(words in told for words in _TOLD):
            raise TooDeep(getattr(error, "lineno", None) or 1, told) from error
        _check(text)
        raise
    data = text.encode()  # Python counts columns in UTF-8
    lines = data.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]
    for first, last in _long_statements(tree, starts):
        statement = data[first:last].decode()
        if sum(1 for _ in _TOKEN.finditer(statement)) > LIMIT // 2:  # never fewer than half of the real tokens
            _check(statement, sum(start <= first for start in starts) - 1)
    return tree


def _long_statements(tree: ast.Module, starts: list[int]) -> Iterator[tuple[int, int]]:
    """Yield where statements, or the headers of compound ones, begin and end that could nest too deeply, in bytes.

    Raises:
        TooDeep: statements nest too deeply, as those of an `elif` do below the one before.
    """

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    left: list[tuple[Any, int]] = [(node, 1) for node in tree.body]
    while left:
        node, level = left.pop()
        if level > LIMIT:
            raise TooDeep(node.lineno)
        names = _blocks(node.__class__)
        for name in names:
            left += [(child, level + 1) for child in getattr(node, name)]
        if isinstance(node, ast.match_case) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue  # the first has no place of its own, and is looked at with its `match`; the second is a text
        if node.end_lineno == node.lineno and node.end_col_offset - node.col_offset <= LIMIT:
            continue
        top = node if not getattr(node, "decorator_list", ()) else node.decorator_list[0]
        first = at(top.lineno, top.col_offset)
        body = node.body[0] if "body" in names else None
        last = at(body.lineno, body.col_offset) if body else at(node.end_lineno, node.end_col_offset)
        if last - first > LIMIT:
            yield first, last


@cache
def _blocks(kind: type[ast.AST]) -> tuple[str, ...]:
    """Return the fields of a kind of statement that hold statements."""
    return tuple(name for name in ("body", "handlers", "orelse", "finalbody", "cases") if name in kind._fields)


def _check(text: str, before: int = 0) -> None:
    """Raise TooDeep if the tokens of `text`, which `before` lines precede, could nest too deeply."""
    for levels, line in _levels(text):
        if levels > LIMIT:
            raise TooDeep(before + line)


def _levels(code: str) -> Iterator[tuple[int, int]]:
    """Yield an upper bound of the levels at each token, and its line, as far as `code` has tokens.

    A level takes a token of its own. What stands before a comma or a new line is beside, and not above, what follows.
    An `elif` is below the one before.
    """
    counts, branches = [0], 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            text = token.string
            if token.type == tokenize.NEWLINE or text == ";":
                counts = [0]
            elif text in ("(", "[", "{"):
                counts.append(1)
            elif text in (")", "]", "}") and len(counts) > 1:
                counts.pop()
                counts[-1] += 1
            elif text == ",":
                counts[-1] = 0
            else:
                branches += text == "elif"
                counts[-1] += 1 + (text.count("{") if token.type == tokenize.STRING else 0)
            yield sum(counts) + branches, token.start[0]
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError):
        return

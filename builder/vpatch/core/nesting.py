"""Refuse code that nests too deeply or is too large for the parsers.

On a stack of 8 MiB, libcst 1.8 crashes at about 2,000 nested brackets, 6,000 lambdas or 10,000 `and`s. Python's own
parser has lower limits for most of these, which differ between its versions, and is ten times as fast, so it runs
first. The deepest syntax tree of a released vLLM has 28 levels.

The limits apply to the decoded text: a codec may expand few bytes to much code.
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

from vpatch.core.syntax import BLOCKS

LIMIT = 1000
"""The most levels; libcst parses six times as many."""
TOKENS = 250_000
"""The most words, signs and line ends in a module: four times as many as in the largest of a released vLLM."""
_NESTING_MESSAGES = ("nested", "too many levels of indentation")
_TOKEN = re.compile(r"\w+|[^\w\s]|[\r\n]")
# These encode a text in one way only; UTF-7, for example, has several.
_ENCODINGS = frozenset({"utf-8", "utf-8-sig", "ascii", "iso8859-1"})


class Unparsable(Exception):
    """A module that vpatch must not parse; the text says why."""


class TooDeep(Unparsable):
    """Code that nests too deeply, with the kind of nesting and the line."""

    def __init__(self, line: int, how: str = "nested too deeply") -> None:
        super().__init__(f"not valid Python: {how} (line {line})")


def decode(data: bytes) -> tuple[str, str]:
    """Return a module's text, without a byte order mark, and the name of its encoding.

    Raises:
        Unparsable: the encoding is not UTF-8, ASCII or Latin-1.
        SyntaxError: the encoding does not exist.
        UnicodeDecodeError: the bytes do not have that encoding.
    """
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    if codecs.lookup(encoding).name not in _ENCODINGS:
        raise Unparsable(f"not readable as text: its encoding is {encoding}, and vpatch reads UTF-8, ASCII and Latin-1")
    return data.decode(encoding), encoding


def bound(text: str) -> None:
    """Refuse a module whose syntax tree could take more than a gigabyte, at libcst's 4,200 bytes a token.

    The size in bytes would mislead: a token takes six in vLLM's largest module and can take one.

    Raises:
        Unparsable: the module has more than `TOKENS` tokens.
    """
    # No token has a space: without them, none of vLLM's modules has to be counted.
    if len(text) - text.count(" ") > TOKENS and next(islice(_TOKEN.finditer(text), TOKENS, None), None):
        raise Unparsable(f"too large: more than {TOKENS:,} tokens, the most that vpatch parses of a module")


def parse(text: str) -> ast.Module:
    """Parse a decoded module with Python's own parser.

    Raises:
        Unparsable: the module is too large, or nests too deeply (`TooDeep`).
        SyntaxError, ValueError: Python cannot parse it.
    """
    bound(text)
    try:
        tree = ast.parse(text)
    except (MemoryError, RecursionError) as error:
        raise TooDeep(max(_levels(text), default=(0, 1))[1]) from error
    except (SyntaxError, ValueError) as error:
        message = str(getattr(error, "msg", ""))
        if any(words in message for words in _NESTING_MESSAGES):
            raise TooDeep(getattr(error, "lineno", None) or 1, message) from error
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
    """Yield the bytes, begin and end, of statements or headers whose expressions could nest too deeply.

    Raises:
        TooDeep: statements nest too deeply; an `elif` is below the one before.
    """
    left: list[tuple[Any, int]] = [(node, 1) for node in tree.body]
    while left:
        node, level = left.pop()
        if level > LIMIT:
            raise TooDeep(node.lineno)
        names = _blocks(node.__class__)
        for name in names:
            left += [(child, level + 1) for child in getattr(node, name)]
        if isinstance(node, ast.match_case) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue  # the first has no position and belongs to its `match`; the second is a string
        if node.end_lineno == node.lineno and node.end_col_offset - node.col_offset <= LIMIT:
            continue
        top = node if not getattr(node, "decorator_list", ()) else node.decorator_list[0]
        first = starts[top.lineno - 1] + top.col_offset
        body = node.body[0] if "body" in names else None
        end = (body.lineno, body.col_offset) if body else (node.end_lineno, node.end_col_offset)
        last = starts[end[0] - 1] + end[1]
        if last - first > LIMIT:
            yield first, last


@cache
def _blocks(kind: type[ast.AST]) -> tuple[str, ...]:
    return tuple(name for name in BLOCKS if name in kind._fields)


def _check(text: str, before: int = 0) -> None:
    for levels, line in _levels(text):
        if levels > LIMIT:
            raise TooDeep(before + line)


def _levels(code: str) -> Iterator[tuple[int, int]]:
    """Yield an upper bound of the levels at each token, with its line, up to the first error.

    Each level takes a token. Code before a comma or a new line does not contain the code behind it. An `elif` is below
    the one before.
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

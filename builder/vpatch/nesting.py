"""Keep code that nests too deeply from libcst: its parser would overflow the stack, and the process would die.

libcst 1.8 dies at about 2,000 nested brackets, 6,000 lambdas or 10,000 `and`s on a stack of 8 MiB. Python's own parser
has limits below that (200 brackets, 100 indents, about 3,000 other levels) and is ten times as fast, so it looks first.
`elide` needs its result anyway. The deepest syntax tree of a released vLLM has 28 levels.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

LIMIT = 1000
"""Levels at most, where Python's parser sets no limit of its own. libcst bears six times as many."""
_DEEP = ("nested", "too many levels of indentation")
_CHAIN = re.compile(rb"\b(?:and|or)\b")


class TooDeep(Exception):
    """Code that nests too deeply; says how, and in which line."""


def parse(data: bytes) -> ast.Module:
    """Parse a module by Python's own parser.

    Raises:
        TooDeep: libcst must not see it.
        SyntaxError: Python cannot parse it, and libcst may try: it may be of a newer Python.
        ValueError: as SyntaxError.
    """
    try:
        tree = ast.parse(data)
    except (MemoryError, RecursionError) as error:
        line = max(((count, -line) for line, count in _levels(data)), default=(0, -1))[1]
        raise TooDeep(f"nested too deeply (line {-line})") from error
    except (SyntaxError, ValueError) as error:
        told = str(getattr(error, "msg", ""))
        if any(words in told for words in _DEEP):
            raise TooDeep(f"{told} (line {getattr(error, 'lineno', 1)})") from error
        for line, count in _levels(data):
            if count > LIMIT:
                raise TooDeep(f"nested too deeply (line {line})") from error
        raise
    # Python keeps `a and b and c` flat, however long it is; libcst nests it.
    if sum(1 for _ in _CHAIN.finditer(data)) > LIMIT:
        for node in ast.walk(tree):
            if isinstance(node, ast.BoolOp) and len(node.values) > LIMIT:
                raise TooDeep(f"nested too deeply (line {node.lineno})")
    return tree


def _levels(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield lines with an upper bound of the levels at a token in them, as far as `data` has tokens.

    A level takes a token of its own. What stands before a comma or a new line is beside, and not above, what follows.
    An `elif` is below the one before.
    """
    counts, branches = [0], 0
    try:
        for token in tokenize.tokenize(io.BytesIO(data).readline):
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
            yield token.start[0], sum(counts) + branches
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError):
        return

"""Short forms of hunks: what comes beside a statement, goes, or takes the place of something."""

from __future__ import annotations

import ast

from vpatch.core.edits.reading import substituted


def signed(sign: str, code: str) -> str:
    """Return the lines of a hunk for code: " " stays, "-" goes, "+" comes."""
    return "".join(f"{sign}{line}\n" for line in code.strip("\n").split("\n"))


def before(anchor: str, new: str) -> str:
    """Put statements right before others."""
    return signed("+", new) + signed(" ", anchor)


def after(anchor: str, new: str) -> str:
    """Put statements right behind others."""
    return signed(" ", anchor) + signed("+", new)


def replaced(old: str, new: str) -> str:
    """Put statements, or an expression, in the place of others."""
    return signed("-", old) + signed("+", new)


def with_keyword(call: str, keyword: str) -> str:
    """Add a keyword argument to a call.

    Raises:
        ValueError: it is no call.
    """
    code = call.strip()
    match ast.parse(substituted(code, {})).body:
        case [ast.Expr(value=ast.Call(args=args, keywords=keywords))]:
            comma = "," if (args or keywords) and not code[:-1].rstrip().endswith(",") else ""
            return signed(" ", f"{code[:-1]}{comma}") + signed("+", f"    {keyword},") + signed(" ", ")")
    raise ValueError(f"`{code}` is no call")

"""The mark: the comment `# vpatch: <overlay>` on every statement that an edit adds or changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import reduce
from typing import cast

from vpatch.core import cst
from vpatch.core.syntax import BLOCKS, Path, along

_MARK = re.compile(r"#\s*vpatch:\s*([a-z0-9]+(?:-[a-z0-9]+)*)")


def mark(overlay: str) -> str:
    """Return the comment that marks a statement as this overlay's."""
    return f"# vpatch: {overlay}"


def marked_by(text: str) -> list[str]:
    """Return the overlay of every mark in `text`, in order."""
    return _MARK.findall(text)


def marks_in(content: bytes) -> list[str]:
    """Return the overlay of every mark in a file, in order."""
    return marked_by(content.decode("utf-8", "replace"))


def lines_marked(content: bytes, overlay: str) -> list[int]:
    """Return the number of every line of a file that has the mark of an overlay, in order."""
    return [number for number, line in enumerate(content.splitlines(), 1) if overlay in marks_in(line)]


def marked_files(overlay: str, files: Iterable[str], read: Callable[[str], bytes | None]) -> tuple[str, ...]:
    """Return the files of a tree that have a mark of an overlay."""
    return tuple(file for file in files if overlay in marks_in(read(file) or b""))


def carrier(module: cst.Module, path: Path) -> Path:
    """Return the path of the statement that carries the mark of a change at `path`, on its line or its header."""
    nodes = along(module, path)
    for depth in range(len(path), 0, -1):
        node, inner = nodes[depth], path[depth][0] if depth < len(path) else ""
        if isinstance(node, cst.SimpleStatementLine | cst.SimpleStatementSuite | cst.Match):
            return path[:depth]
        if isinstance(getattr(node, "body", None), cst.BaseSuite) and inner not in BLOCKS:
            return path[:depth]
    raise LookupError(path)


def _trailing(node: cst.CSTNode) -> tuple[str, ...]:
    """Return the fields that lead to the whitespace behind a statement or its header."""
    match node:
        case cst.SimpleStatementLine() | cst.SimpleStatementSuite():
            return ("trailing_whitespace",)
        case cst.Match():
            return ("whitespace_after_colon",)
        case _ if isinstance(body := getattr(node, "body", None), cst.IndentedBlock):
            return ("body", "header")
        case _ if isinstance(body, cst.SimpleStatementSuite):
            return ("body", "trailing_whitespace")
    raise LookupError(type(node).__name__)


def marks_on(node: cst.CSTNode) -> list[str]:
    """Return the overlays whose marks a statement has."""
    comment = cast("cst.TrailingWhitespace", reduce(getattr, _trailing(node), node)).comment
    return marked_by(comment.value) if comment else []


def with_mark(node: cst.CSTNode, overlay: str) -> cst.CSTNode:
    """Add the overlay's mark to a statement, behind any comment; marks are sorted."""
    *outer, field = _trailing(node)
    owner: cst.CSTNode = reduce(getattr, outer, node)
    old: cst.TrailingWhitespace = getattr(owner, field)
    text = old.comment.value if old.comment else ""
    names = sorted({*marked_by(text), overlay})
    comment = cst.Comment("  ".join([*filter(None, [_MARK.sub("", text).strip()]), *map(mark, names)]))
    space = old.whitespace if old.comment else cst.SimpleWhitespace("  ")
    owner = owner.with_changes(**{field: old.with_changes(whitespace=space, comment=comment)})
    return node.with_changes(body=owner) if outer else owner

"""The mark: the comment `# vpatch: <overlay>` on every statement that an edit adds or changes."""

from __future__ import annotations

import re

from vpatch.core import cst
from vpatch.core.syntax import BLOCKS, Path, along

_MARK = re.compile(r"#\s*vpatch:\s*([a-z0-9]+(?:-[a-z0-9]+)*)")


def mark(overlay: str) -> str:
    """Give the comment that marks a statement as this overlay's."""
    return f"# vpatch: {overlay}"


def marked_by(text: str) -> list[str]:
    """Give the overlays whose marks stand in `text`, in order, as often as they stand there."""
    return _MARK.findall(text)


def marks_in(content: bytes) -> list[str]:
    """Give the overlays whose marks stand in a file, as `marked_by` does."""
    return marked_by(content.decode("utf-8", "replace"))


def carrier(module: cst.Module, path: Path) -> Path:
    """Give the path of the statement, or the header of one, that carries the mark of a change at `path`."""
    nodes = along(module, path)
    for depth in range(len(path), 0, -1):
        node, inner = nodes[depth], path[depth][0] if depth < len(path) else ""
        if isinstance(node, cst.SimpleStatementLine | cst.SimpleStatementSuite | cst.Match):
            return path[:depth]
        if isinstance(getattr(node, "body", None), cst.BaseSuite) and inner not in BLOCKS:
            return path[:depth]
    raise LookupError(path)


def _trailing(node: cst.CSTNode) -> cst.TrailingWhitespace:
    match node:
        case cst.SimpleStatementLine() | cst.SimpleStatementSuite():
            return node.trailing_whitespace
        case cst.Match():
            return node.whitespace_after_colon
        case _ if isinstance(body := getattr(node, "body", None), cst.IndentedBlock):
            return body.header
        case _ if isinstance(body, cst.SimpleStatementSuite):
            return body.trailing_whitespace
    raise LookupError(type(node).__name__)


def marks_on(node: cst.CSTNode) -> list[str]:
    """Give the overlays whose marks are on a statement."""
    comment = _trailing(node).comment
    return marked_by(comment.value) if comment else []


def with_mark(node: cst.CSTNode, overlay: str) -> cst.CSTNode:
    """Give the statement with the overlay's mark on it, after any comment it has; marks are sorted."""
    old = _trailing(node)
    text = old.comment.value if old.comment else ""
    names = sorted({*marked_by(text), overlay})
    kept = _MARK.sub("", text).strip()
    comment = "  ".join([*filter(None, [kept]), *map(mark, names)])
    new = old.with_changes(
        whitespace=old.whitespace if old.comment else cst.SimpleWhitespace("  "), comment=cst.Comment(comment)
    )
    match node:
        case cst.SimpleStatementLine() | cst.SimpleStatementSuite():
            return node.with_changes(trailing_whitespace=new)
        case cst.Match():
            return node.with_changes(whitespace_after_colon=new)
    body = node.body  # type: ignore[attr-defined]
    name = "header" if isinstance(body, cst.IndentedBlock) else "trailing_whitespace"
    return node.with_changes(body=body.with_changes(**{name: new}))

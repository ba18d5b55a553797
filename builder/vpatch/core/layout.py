"""Lay out new code with libcst: statements in their block, and changes within a statement in its own layout."""

from __future__ import annotations

import ast
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, reduce
from typing import TYPE_CHECKING, Any, TypeAlias

from vpatch.core import cst
from vpatch.core.marks import mark, with_marks
from vpatch.core.parse import Source, first_line
from vpatch.core.syntax import along, within

if TYPE_CHECKING:
    from vpatch.core.changes import Amendment, Group

Revise: TypeAlias = Callable[[Any, Any], Any]
Range: TypeAlias = tuple[int, int, int, int]
"""The line and the column of the begin, and those of the end."""


def rendered(source: Source, under: str, group: Group) -> str:
    """Return code as it stands in its block: marked, indented as the block is, with the line ends of the module."""
    body: list[Any] = []
    here = within(next(iter(group)).block)
    indent = source.indent_of(here[0].node) if here else ""
    for one, overlays in group.items():
        if not one.new and one.last < len(here):
            return f"{indent}{mark(overlays[0])}{source.newline}"
        head, *rest = _statements(one.new or "pass")
        blank = [cst.EmptyLine(indent=False)] * one.above
        head = head.with_changes(leading_lines=(*blank, *getattr(head, "leading_lines", ())))
        body += [with_mark(node.deep_clone(), overlays) for node in (head, *rest)]
    if under:
        guard: Any = _statements(f"{under}:\n    pass")[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        overlays = [one for names in group.values() for one in names]
        body = [with_mark(guard.with_changes(body=guard.body.with_changes(body=body)), overlays)]
    options: dict[str, Any] = {"default_indent": source.indent, "default_newline": source.newline}
    if not indent:
        return cst.Module(body, **options).code
    held = cst.If(cst.Name("held"), cst.IndentedBlock(body, indent=indent))
    return cst.Module([held], **options).code.partition("\n")[2]


@cache
def _statements(code: str) -> tuple[Any, ...]:
    module = cst.parse_module(code.rstrip("\n"))
    head, *rest = module.body
    above = (*module.header, *head.leading_lines)
    return (head.with_changes(leading_lines=[line.with_changes(indent=bool(line.comment)) for line in above]), *rest)


def amended(source: Source, node: Any, amendments: Sequence[Amendment]) -> tuple[int, int, str]:
    """Make changes in a statement or its header; return its first and its last line, and their new text.

    Raises:
        RuntimeError: libcst's tree lacks what changes, or it does not write back what it read.
    """
    frame = _Frame(source, node)
    changes: dict[int, list[Revise]] = defaultdict(list)
    for amendment in amendments:
        if amendment.change:
            target = along(source.tree, amendment.path)[-1]
            changes[id(frame.top if target is node else frame.expression(target))].append(amendment.change)
    overlays = {amendment.overlay for amendment in amendments}
    changes[id(frame.top)].append(lambda new, _: with_mark(new, overlays))
    module: Any = frame.module.visit(_Changing(changes))
    return frame.first, frame.last, frame.lines_of(module)


class _Frame:
    """The lines of a statement, or of its header, among as much code as libcst needs to parse them."""

    def __init__(self, source: Source, node: Any) -> None:
        self._source = source
        self.first, self.last = first_line(node), _header_end(source, node)
        lines = source.lines[self.first - 1 : self.last]
        indent = source.indent_of(node)
        self._above, self._below = ["if held:\n"] if indent else [], list[str]()
        if isinstance(node, ast.match_case):
            self._above = ["match held:\n"]
        elif isinstance(node, ast.ExceptHandler):
            self._above += [f"{indent}try:\n", f"{indent}    pass\n"]
        elif source.is_elif(node):
            self._above += [f"{indent}if held:\n", f"{indent}    pass\n"]
        if isinstance(node, ast.Match):
            self._below = [f"{indent}    case _:\n", f"{indent}        pass\n"]
        elif getattr(node, "body", None) and first_line(node.body[0]) > self.last:
            self._below = [f"{indent}    pass\n"]
        # The first line end is that of new lines.
        code = "".join([line.replace("\n", source.newline) for line in self._above] + lines + self._below)
        self.module = cst.parse_module(code)
        if self.module.code != code:
            raise RuntimeError(f"{source.file}, line {self.first}: libcst does not write back what it read")
        self.top = self._find(node, indented=bool(indent))

    def _find(self, node: Any, *, indented: bool) -> Any:
        top: Any = self.module.body[0]
        if isinstance(node, ast.match_case):
            return top.cases[0]
        top = top.body.body[0] if indented else top
        if isinstance(node, ast.ExceptHandler):
            return top.handlers[0]
        return top.orelse if self._source.is_elif(node) else top

    def expression(self, node: Any) -> Any:
        """Return libcst's node of an expression."""
        from libcst.metadata import MetadataWrapper, PositionProvider

        found = MetadataWrapper(self.module, unsafe_skip_copy=True).resolve(PositionProvider)
        spans: dict[Range, Any] = {
            (at.start.line, at.start.column, at.end.line, at.end.column): one
            for one, at in found.items()
            if isinstance(one, cst.BaseExpression)
        }
        shift = len(self._above) + 1 - self.first
        start, end = self._column(node.lineno, node.col_offset), self._column(node.end_lineno, node.end_col_offset)
        for inner in (0, 1):  # Python counts the parentheses of a tuple or a generator as part of it
            if one := spans.get((node.lineno + shift, start + inner, node.end_lineno + shift, end - inner)):
                return one
        # Python 3.11 has wrong positions within f-strings.
        alike = [one for one in spans.values() if _dumped(self.module.code_for_node(one)) == ast.dump(node)]
        if len(alike) != 1:
            raise RuntimeError(f"{self._source.file}, line {node.lineno}: libcst has no such expression")
        return alike[0]

    def _column(self, line: int, offset: int) -> int:
        return len(self._source.lines[line - 1].encode()[:offset].decode())  # Python counts in UTF-8

    def lines_of(self, module: cst.Module) -> str:
        """Return the statement's lines of what the frame's module was changed into."""
        lines = module.code.splitlines(keepends=True)
        return "".join(lines[len(self._above) : len(lines) - len(self._below)])


def _header_end(source: Source, node: Any) -> int:
    """Return the last line of a statement's header, or of the statement if no block has lines of its own."""
    line = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
    tokens = tokenize.generate_tokens(iter(source.lines[line - 1 :]).__next__)
    return int(next(token for token in tokens if token.type == tokenize.NEWLINE).start[0]) + line - 1


def _dumped(code: str) -> str:
    try:
        return ast.dump(ast.parse(f"({code})", mode="eval").body)
    except SyntaxError:
        return ""


class _Changing(cst.CSTTransformer):
    """Changes nodes, the inner ones first."""

    def __init__(self, changes: dict[int, list[Revise]]) -> None:
        super().__init__()
        self._changes, self._around = changes, list[cst.CSTNode]()

    def on_visit(self, node: cst.CSTNode) -> bool:
        self._around.append(node)
        return True

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        self._around.pop()
        changes = self._changes.get(id(original_node), ())
        return reduce(lambda new, change: change(new, self._around[-1]), changes, updated_node)


def with_mark(node: Any, overlays: Iterable[str]) -> Any:
    """Add marks to a statement of libcst's, on its line or the last one of its header, behind any comment."""
    *outer, field = _trailing(node)
    owner: Any = reduce(getattr, outer, node)
    old: cst.TrailingWhitespace = getattr(owner, field)
    comment = cst.Comment(with_marks(old.comment.value if old.comment else "", overlays))
    space = old.whitespace if old.comment else cst.SimpleWhitespace("  ")
    owner = owner.with_changes(**{field: old.with_changes(whitespace=space, comment=comment)})
    return node.with_changes(body=owner) if outer else owner


def _trailing(node: cst.CSTNode) -> tuple[str, ...]:
    """Return the fields that lead to the white space behind a statement or its header."""
    match node:
        case cst.Match():
            return ("whitespace_after_colon",)
        case cst.SimpleStatementLine():
            return ("trailing_whitespace",)
        case _ if isinstance(getattr(node, "body", None), cst.IndentedBlock):
            return ("body", "header")
    return ("body", "trailing_whitespace")

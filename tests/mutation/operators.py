"""Small mistakes that a programmer could make, as replacements of text: the mutants of one module.

Left out is what no test should notice: docstrings, annotations, the words of messages, imports, and caches.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass

_PAIRS: tuple[tuple[type[ast.AST], type[ast.AST]], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv), (ast.LShift, ast.RShift)),
    *((ast.BitAnd, ast.BitOr), (ast.Mod, ast.Mult), (ast.Div, ast.Mult)),
)
SWAPPED = {**{b: a for a, b in _PAIRS[:10]}, **dict(_PAIRS)}
CACHES = {"cache", "lru_cache", "override", "overload", "runtime_checkable", "final"}
ASKING = {"startswith", "endswith", "get", "partition", "rpartition", "split", "removeprefix", "removesuffix", "strip"}

Change = tuple[str, ast.AST, str]
"""The operator's name, the node to replace, and its new text."""


@dataclass(frozen=True)
class Mutant:
    """One change of a module: bytes from `start` to `end` become `after`.

    `lines` are those whose tests may notice: of the changed statement or its header, or of the function if its
    decorators or defaults change.
    """

    file: str
    line: int
    lines: tuple[int, int]
    operator: str
    start: int
    end: int
    before: str
    after: str

    def apply(self, data: bytes) -> bytes:
        """Return the module with the change."""
        return data[: self.start] + self.after.encode() + data[self.end :]


def mutants(file: str, text: str) -> list[Mutant]:
    """List all mutants of a module in the order of the code. A few do not compile."""
    data, found = text.encode(), []
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for stmt, (operator, node, after) in _statements(ast.parse(text).body):
        start = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        before = data[start:end].decode()
        mutant = Mutant(file, node.lineno, _lines(stmt, node), operator, start, end, before, after)  # type: ignore[attr-defined]
        found.append(mutant)
    return sorted(found, key=lambda one: (one.start, one.end, one.operator, one.after))


def _lines(stmt: ast.stmt, node: ast.AST) -> tuple[int, int]:
    if isinstance(node, _Span):
        return node.lineno, node.end_lineno or node.lineno
    body = getattr(stmt, "body", None)
    if isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return stmt.lineno, stmt.end_lineno or stmt.lineno
    last = body[0].lineno - 1 if isinstance(body, list) else stmt.end_lineno or stmt.lineno
    return stmt.lineno, max(stmt.lineno, last)


def compiles(data: bytes) -> bool:
    """Whether a module is valid Python."""
    try:
        compile(data, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _statements(block: list[ast.stmt]) -> Iterator[tuple[ast.stmt, Change]]:
    for stmt in block:
        if isinstance(stmt, ast.If) and ast.unparse(stmt.test) in {"TYPE_CHECKING", "__name__ == '__main__'"}:
            continue
        yield from ((stmt, change) for change in _of_statement(stmt))
        for node in _headers(stmt):
            yield from ((stmt, change) for change in _expressions(node, stmt))
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(stmt, name, []))
        for inner in (*getattr(stmt, "handlers", ()), *getattr(stmt, "cases", ())):
            yield from _statements(inner.body)


def _headers(stmt: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions of a statement outside its blocks that are worth a change."""
    match stmt:
        case ast.Raise() | ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return
        case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args):
            yield from (default for default in (*args.defaults, *args.kw_defaults) if default)
        case ast.ClassDef():
            return
        case ast.AnnAssign(annotation=annotation, value=value):
            if value and ast.unparse(annotation) != "TypeAlias":
                yield value
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return
        case ast.Match(subject=subject, cases=cases):
            yield subject
            yield from (case.guard for case in cases if case.guard)
        case _:
            for child in ast.iter_child_nodes(stmt):
                if not isinstance(child, ast.stmt | ast.ExceptHandler):
                    yield child


def _of_statement(stmt: ast.stmt) -> Iterator[Change]:
    match stmt:
        case ast.If(test=test) | ast.While(test=test):
            yield "negate condition", test, f"(not ({_code(test)}))"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return None", value, "None"
        case ast.Break() | ast.Continue():
            yield "swap break", stmt, "continue" if isinstance(stmt, ast.Break) else "break"
        case ast.Expr(value=ast.Call() | ast.YieldFrom() | ast.Yield() | ast.Await()):
            yield "drop statement", stmt, "pass"
        case ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Return(value=None):
            yield "drop statement", stmt, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "drop statement", stmt, "pass"
        case ast.Try(handlers=handlers, finalbody=final):
            for handler in handlers:
                yield "do not handle", _Span(handler.body[0], handler.body[-1]), "raise"
            if final:
                yield "drop finally", _Span(final[0], final[-1]), "pass"
    for decorator in getattr(stmt, "decorator_list", ()):
        name = ast.unparse(decorator).partition("(")[0].rpartition(".")[2]
        if name not in CACHES:
            yield "drop decorator", _Decorator(decorator), ""


class _Span(ast.AST):
    """From one statement to another."""

    def __init__(self, first: ast.stmt, last: ast.stmt) -> None:
        self.lineno, self.col_offset = first.lineno, first.col_offset
        self.end_lineno, self.end_col_offset = last.end_lineno, last.end_col_offset


class _Decorator(ast.AST):
    """A decorator with its @."""

    def __init__(self, node: ast.expr) -> None:
        self.lineno, self.col_offset = node.lineno, node.col_offset - 1
        self.end_lineno, self.end_col_offset = node.end_lineno, node.end_col_offset


def _expressions(node: ast.AST, parent: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.JoinedStr):  # whose parts have no positions before Python 3.12
        return
    for name, make in OPERATORS:
        yield from ((name, node, text) for text in make(node, parent))
    match node:
        case ast.Lambda(body=body):
            yield from _expressions(body, node)
        case ast.arguments() | ast.expr_context() | ast.operator() | ast.boolop() | ast.cmpop() | ast.unaryop():
            return
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _expressions(child, node)


def _code(node: ast.AST) -> str:
    return ast.unparse(node)


def _with(node: ast.AST, **fields: object) -> str:
    new = copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return f"({_code(new)})"


def _comparison(node: ast.AST, _: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            yield _with(node, ops=[*node.ops[:index], SWAPPED[type(op)](), *node.ops[index + 1 :]])


def _boolean(node: ast.AST, _: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.BoolOp):
        yield _with(node, op=SWAPPED[type(node.op)]())


def _operand(node: ast.AST, _: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.BoolOp):
        for rest in _without_one(node.values):
            yield f"({_code(rest[0])})" if len(rest) == 1 else _with(node, values=rest)


def _arithmetic(node: ast.AST, _: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        text = any(isinstance(n, ast.JoinedStr) or _is_text(n) for n in (node.left, node.right))
        if not text:
            yield _with(node, op=SWAPPED[type(node.op)]())


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _not(node: ast.AST, _: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"({_code(node.operand)})"


def _condition(node: ast.AST, _: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))


def _filter(node: ast.AST, _: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        for index, loop in enumerate(node.generators):
            if loop.ifs:
                plain = copy(loop)
                plain.ifs = []
                yield _with(node, generators=[*node.generators[:index], plain, *node.generators[index + 1 :]])[1:-1]


def _constant(node: ast.AST, parent: ast.AST) -> Iterator[str]:
    match node:
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield f"{value + 1}"
        case ast.Constant(value=str(value)) if value and _asks(node, parent):
            yield repr(f"{value}_")


def _asks(node: ast.AST, parent: ast.AST) -> bool:
    """Whether a string selects something: those that only tell something are messages."""
    match parent:
        case ast.Compare() | ast.Subscript() | ast.Set():
            return True
        case ast.Dict(keys=keys):
            return node in keys
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in ASKING
    return False


def _argument(node: ast.AST, _: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        yield from (_with(node, keywords=rest)[1:-1] for rest in _without_one(node.keywords))


def _element(node: ast.AST, _: ast.AST) -> Iterator[str]:
    match node:
        case ast.List(elts=elts, ctx=ast.Load()) | ast.Set(elts=elts):
            yield from (_with(node, elts=rest) for rest in _without_one(elts) if rest)
        case ast.Tuple(elts=elts, ctx=ast.Load()) if all(isinstance(one, ast.Constant) for one in elts):
            yield from (_with(node, elts=rest) for rest in _without_one(elts))
        case ast.Dict(keys=keys, values=values):
            for index in range(len(keys)):
                yield _with(
                    node, keys=[*keys[:index], *keys[index + 1 :]], values=[*values[:index], *values[index + 1 :]]
                )


def _without_one(nodes: list[ast.expr] | list[ast.keyword]) -> Iterator[list[ast.AST]]:
    for index in range(len(nodes)):
        yield [*nodes[:index], *nodes[index + 1 :]]


OPERATORS: tuple[tuple[str, Callable[[ast.AST, ast.AST], Iterator[str]]], ...] = (
    ("swap comparison", _comparison),
    ("swap and/or", _boolean),
    ("drop operand", _operand),
    ("swap arithmetic", _arithmetic),
    ("drop not", _not),
    ("negate condition", _condition),
    ("drop filter", _filter),
    ("change constant", _constant),
    ("drop argument", _argument),
    ("drop element", _element),
)

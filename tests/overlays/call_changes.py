"""Changes of a definition that an overlay calls, each with the reason why its code is right all the same, if it is."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from vpatch.core.calls import Call
from vpatch.core.landing.flow import statements

Function = ast.FunctionDef | ast.AsyncFunctionDef
NEW = "vpatch_new"


def _copy(node: ast.stmt) -> ast.stmt:
    return ast.parse(ast.unparse(node)).body[0]


Change = Iterator[tuple[str, ast.stmt | None, str]]


def _passed(call: Call) -> tuple[int, set[str], bool]:
    """Return how many arguments are passed by position, and the names of others; whether a star hides some."""
    count, names, hidden = 0, set[str](), False
    for given in call.given:
        node = ast.parse(f"f{given}", mode="eval").body
        assert isinstance(node, ast.Call)
        count = max(count, len(node.args))
        names |= {each.arg for each in node.keywords if each.arg}
        hidden |= any(isinstance(each, ast.Starred) for each in node.args) or any(
            not each.arg for each in node.keywords
        )
    return count, names, hidden


def _parameters(node: Function) -> list[str]:
    return [each.arg for each in (*node.args.posonlyargs, *node.args.args)]


def _used(node: Function, call: Call) -> list[str]:
    """Return the parameters that the code passes, without the implicit one."""
    count, names, _ = _passed(call)
    own = _parameters(node)
    skip = 1 if call.given[0].startswith("(self") else 0
    return [name for place, name in enumerate(own) if place >= skip and (place < count or name in names)]


def _changed(node: Function, change: Callable[[Function], object]) -> Function:
    new = _copy(node)
    assert isinstance(new, Function)
    change(new)
    return new


def _async(node: Function, call: Call) -> Change:
    if isinstance(node, ast.FunctionDef):
        new = _copy(node)
        fields = {name: getattr(new, name) for name in new._fields}
        yield "", ast.AsyncFunctionDef(**fields, lineno=1, col_offset=0), ""


def _generator(node: Function, call: Call) -> Change:
    yield "", _changed(node, lambda new: new.body.append(ast.Expr(ast.Yield()))), ""


def _gone(node: ast.stmt, call: Call) -> Change:
    def rename(new: ast.stmt) -> ast.stmt:
        new.name += "_renamed"  # type: ignore[attr-defined]
        return new

    yield "", rename(_copy(node)), ""


def _remove(node: Function, call: Call) -> Change:
    if node.args.kwarg:
        return
    for name in _used(node, call):

        def drop(new: Function, name: str = name) -> None:
            place = _parameters(new).index(name)
            defaults = [None] * (len(new.args.args) - len(new.args.defaults)) + list(new.args.defaults)
            del new.args.args[place], defaults[place]
            new.args.defaults = [each for each in defaults if each is not None]

        if name in [each.arg for each in node.args.args]:
            yield name, _changed(node, drop), ""


def _rename(node: Function, call: Call) -> Change:
    for name in _used(node, call) if not node.args.kwarg else ():

        def rename(new: Function, name: str = name) -> None:
            next(each for each in new.args.args if each.arg == name).arg = NEW

        if name in [each.arg for each in node.args.args]:
            yield name, _changed(node, rename), ""


def _swap(node: Function, call: Call) -> Change:
    count, _, _ = _passed(call)
    own = _parameters(node)
    for place, (one, other) in enumerate(pairwise(own)):
        used = _used(node, call)

        def swap(new: Function, place: int = place) -> None:
            args = new.args.args
            args[place], args[place + 1] = args[place + 1], args[place]

        if one in used and other in used and not node.args.posonlyargs:
            yield f"{one}, {other}", _changed(node, swap), "" if place < count else "both are passed by name"


def _insert(node: Function, call: Call) -> Change:
    skip = 1 if call.given[0].startswith("(self") else 0
    for place in range(skip, len(node.args.args) - len(node.args.defaults) + 1):
        yield (
            f"at {place}",
            _changed(node, lambda new, place=place: new.args.args.insert(place, ast.arg(NEW))),  # type: ignore[misc]
            "",
        )


def _keyword_only(node: Function, call: Call) -> Change:
    count, _, _ = _passed(call)
    skip = 1 if call.given[0].startswith("(self") else 0
    if node.args.vararg or node.args.posonlyargs or len(node.args.args) <= skip:
        return

    def make(new: Function) -> None:
        args, defaults = new.args.args[skip:], new.args.defaults
        required = len(new.args.args) - len(defaults)
        new.args.kw_defaults = [
            *(defaults[place - required] if place >= required else None for place in range(skip, len(new.args.args))),
            *new.args.kw_defaults,
        ]
        new.args.kwonlyargs = [*args, *new.args.kwonlyargs]
        new.args.args, new.args.defaults = new.args.args[:skip], []

    yield "", _changed(node, make), "" if count > skip else "all are passed by name"


def _required(node: Function, call: Call) -> Change:
    if any("**" in given for given in call.given):
        return

    def add(new: Function) -> None:
        new.args.kwonlyargs.append(ast.arg(NEW))
        new.args.kw_defaults.append(None)

    yield "", _changed(node, add), ""


def _returning(change: Callable[[ast.expr], ast.expr]) -> Callable[[Function, Call], Change]:
    def changes(node: Function, call: Call) -> Change:
        def make(new: Function) -> None:
            new.returns = None
            for stmt in statements(new.body):
                if isinstance(stmt, ast.Return) and stmt.value is not None:
                    stmt.value = change(stmt.value)

        harmless = "the result is ignored" if call.ignored else ""
        returns = any(isinstance(each, ast.Return) and each.value is not None for each in statements(node.body))
        if returns and not any(name.endswith("property") for name in _decorators(node)):
            yield "", _changed(node, make), harmless

    return changes


def _decorators(node: Function) -> list[str]:
    return [ast.unparse(each) for each in node.decorator_list]


def _nothing(value: ast.expr) -> ast.expr:
    return ast.Constant(None)


def _pair(value: ast.expr) -> ast.expr:
    return ast.Tuple([value, ast.Constant(None)], ast.Load())


def _units(value: ast.expr) -> ast.expr:
    return ast.BinOp(value, ast.Mult(), ast.Constant(2))


def _fields(node: ast.ClassDef, call: Call) -> Change:
    _, names, _ = _passed(call)
    for number, stmt in enumerate(node.body):
        if isinstance(stmt, ast.AnnAssign) and isinstance(stmt.target, ast.Name) and stmt.target.id in names:
            new = _copy(node)
            new.body[number].target.id = NEW  # type: ignore[attr-defined]
            yield stmt.target.id, new, ""


def _constructor(change: Callable[[Function, Call], Change]) -> Callable[[ast.ClassDef, Call], Change]:
    def changes(node: ast.ClassDef, call: Call) -> Change:
        for number, stmt in enumerate(node.body):
            if isinstance(stmt, ast.FunctionDef) and stmt.name == "__init__":
                for detail, new, harmless in change(stmt, call):
                    whole = _copy(node)
                    whole.body[number] = new  # type: ignore[attr-defined]
                    yield detail, whole, harmless

    return changes


OF_FUNCTIONS: Mapping[str, Callable[[Function, Call], Change]] = {
    "async": _async,
    "generator": _generator,
    "gone": _gone,
    "insert": _insert,
    "keyword-only": _keyword_only,
    "remove": _remove,
    "rename": _rename,
    "required-keyword": _required,
    "returns-nothing": _returning(_nothing),
    "returns-pair": _returning(_pair),
    "returns-other-value": _returning(_units),
    "swap": _swap,
}
OF_CLASSES: Mapping[str, Callable[[ast.ClassDef, Call], Change]] = {
    "field-renamed": _fields,
    "gone": _gone,
    **{
        kind: _constructor(OF_FUNCTIONS[kind])
        for kind in ("insert", "keyword-only", "remove", "rename", "required-keyword")
    },
    "swap": _constructor(_swap),
}

"""The interface of a definition: what a call of it depends on. It is its kind, its parameters, and what it returns."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, Signature

from vpatch.core.landing.binding import dotted
from vpatch.core.landing.definitions import KEEPING
from vpatch.core.landing.flow import Definition, children

IMPLICIT = "self"
"""The argument that a call does not write: the instance or the class of a method, the new object of a constructor."""

_KINDS = {"staticmethod": "static method", "classmethod": "class method", "jit": "kernel"}
_KEEPING_NAMES = frozenset(name.rpartition(".")[2] for name in KEEPING)


@dataclass(frozen=True)
class Interface:
    """The interface of a definition, in one release.

    Attributes:
        kind: "function", "method", "static method", "class method", "property", "kernel" (of Triton) or "class"; with
            "coroutine", "generator" or "async generator" before it.
        parameters: as in a `def`, without annotations, and with `...` for each default: `self, x, *, scale=...`. Those
            of a class are the ones of its constructor.
        returns: the shapes of what it returns: "value", "nothing", "2 values". Empty for a class, or if nothing says.
        decorators: the names of decorators that may replace it.
    """

    kind: str
    parameters: str
    returns: frozenset[str] = frozenset()
    decorators: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """Write it on one line: `method (self, x, scale=...) -> nothing | value @wrapped`."""
        returns = f" -> {' | '.join(sorted(self.returns))}" if self.returns else ""
        return f"{self.kind} ({self.parameters}){returns}{''.join(f' @{name}' for name in sorted(self.decorators))}"


_WRITTEN = re.compile(r"([a-z ]+) \((.*)\)(?: -> ([^@]+?))?((?: @\w+)*)")


def parse_interface(text: str) -> Interface:
    """Parse what `str` of an interface writes.

    Raises:
        ValueError: it is not written so.
    """
    if not (found := _WRITTEN.fullmatch(text)):
        raise ValueError(f"{text!r} is no interface of a definition")
    kind, parameters, returns, decorators = found.groups()
    try:
        signature(parameters)
    except SyntaxError as error:
        raise ValueError(f"{text!r} has no parameters: {error}") from error
    shapes, names = (returns or "").split(" | "), decorators.split(" @")
    return Interface(kind, parameters, frozenset(shapes) - {""}, frozenset(names) - {""})


def interface_of(node: ast.FunctionDef | ast.AsyncFunctionDef, *, in_class: bool) -> Interface:
    """Return the interface of a function; `in_class`: it stands directly in a class."""
    names = [dotted(decorator).rpartition(".")[2] for decorator in node.decorator_list]
    own = list(_own_nodes(node))
    generates = any(isinstance(each, ast.Yield | ast.YieldFrom) for each in own)
    kind = next((_KINDS[name] for name in names if name in _KINDS), "method" if in_class else "function")
    if any(name.endswith("property") for name in names):
        kind = "property"
    prefix = {
        (False, False): "",
        (False, True): "generator ",
        (True, False): "coroutine ",
        (True, True): "async generator ",
    }[isinstance(node, ast.AsyncFunctionDef), generates]
    replacing = frozenset(name for name in names if name not in _KEEPING_NAMES and not name.endswith("property"))
    returns = frozenset() if generates else frozenset(_returned(node, own))
    return Interface(prefix + kind, parameters_of(node.args), returns, replacing)


def parameters_of(arguments: ast.arguments) -> str:
    """Write parameters as `Interface.parameters` has them."""

    def bare(argument: ast.arg | None) -> ast.arg | None:
        return argument and ast.arg(argument.arg)

    given = ast.Constant(...)
    return ast.unparse(
        ast.arguments(
            posonlyargs=[ast.arg(each.arg) for each in arguments.posonlyargs],
            args=[ast.arg(each.arg) for each in arguments.args],
            vararg=bare(arguments.vararg),
            kwonlyargs=[ast.arg(each.arg) for each in arguments.kwonlyargs],
            kw_defaults=[default and given for default in arguments.kw_defaults],
            kwarg=bare(arguments.kwarg),
            defaults=[given] * len(arguments.defaults),
        )
    )


@cache
def signature(parameters: str) -> Signature:
    """Parse what `parameters_of` writes.

    Raises:
        SyntaxError: it is not written so.
    """
    (function,) = ast.parse(f"def f({parameters}): ...").body
    arguments = function.args  # type: ignore[attr-defined]
    plain = [*arguments.posonlyargs, *arguments.args]
    required = len(plain) - len(arguments.defaults)
    found = [
        Parameter(
            each.arg,
            Parameter.POSITIONAL_ONLY if each in arguments.posonlyargs else Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if place < required else ...,
        )
        for place, each in enumerate(plain)
    ]
    if arguments.vararg:
        found.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    found += [
        Parameter(each.arg, Parameter.KEYWORD_ONLY, default=... if default else Parameter.empty)
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    if arguments.kwarg:
        found.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return Signature(found)


@cache
def arguments(given: str) -> ast.Call:
    """Parse the arguments of a call, as `vpatch.core.calls.Call.given` has them.

    Raises:
        SyntaxError: it is not written so.
    """
    call = ast.parse(f"f{given}", mode="eval").body
    if not isinstance(call, ast.Call):
        raise SyntaxError(f"{given!r} is no call")
    return call


def source_digest(lines: Iterable[str]) -> str:
    """Return a short digest of source, without indentation, blank lines, and comments on lines of their own.

    Not of its syntax tree, which Python versions write differently.
    """
    kept = (line.strip() for line in lines)
    text = "\n".join(line for line in kept if line and not line.startswith("#"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of functions and classes in it."""
    todo = list(getattr(function, "body", ()))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, Definition | ast.Lambda):
            todo += children(node)


def _returned(function: ast.FunctionDef | ast.AsyncFunctionDef, own: list[ast.AST]) -> Iterator[str]:
    """Yield the shapes of returned values; where only the annotation says, that of the annotation."""
    annotated = _annotated(function.returns)
    returns = [node.value for node in own if isinstance(node, ast.Return)]
    if not returns:
        stub = isinstance(function.body[-1], ast.Raise) or _is_ellipsis(function.body[-1])
        yield from ([annotated] if annotated else []) if stub else ["nothing"]
    for value in returns:
        match value:
            case None | ast.Constant(value=None):
                yield "nothing"
            case ast.Tuple(elts=elements) if not any(isinstance(each, ast.Starred) for each in elements):
                yield f"{len(elements)} values"
            case _:
                yield annotated if annotated not in {"", "nothing"} else "value"


def _is_ellipsis(stmt: ast.stmt) -> bool:
    return isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Constant) and stmt.value.value is ...


def _annotated(annotation: ast.expr | None) -> str:
    """Return the shape that a return annotation names, or an empty text."""
    match annotation:
        case None:
            return ""
        case ast.Constant(value=None):
            return "nothing"
        case ast.Constant(value=str(text)):
            try:
                return _annotated(ast.parse(text, mode="eval").body)
            except SyntaxError:
                return "value"
        case ast.Subscript(value=owner, slice=ast.Tuple(elts=elements)) if dotted(owner).rpartition(".")[2] in {
            "tuple",
            "Tuple",
        } and not any(isinstance(each, ast.Constant) and each.value is ... for each in elements):
            return f"{len(elements)} values"
    return "value"

"""Changes that upstream may make which override the code that an overlay changes, or keep it from running.

Each mutation is text that compiles. A `harmful` one must be refused; the others look alike but change nothing
relevant, so that the overlay must still apply.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tests.overlays.mutants import indented, lines_of

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Override:
    """A mutated module; `what` names the overridden definition."""

    kind: str
    what: str
    text: str
    harmful: bool


@lru_cache(maxsize=32)
def parsed(text: str) -> ast.Module:
    """Parse a module, of which many overrides are made. Do not modify it."""
    return ast.parse(text)


def chain(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Find the definitions along a qualified name, outermost first; none if the module lacks one of them."""
    found: list[ast.stmt] = []
    body: Sequence[ast.stmt] = tree.body
    for step in name.split("."):
        named = (n for n in ast.walk(ast.Module(list(body), [])) if isinstance(n, Function | ast.ClassDef))
        here = next((n for n in named if n.name == step), None)
        if here is None:
            return []
        found.append(here)
        body = here.body
    return found


def of_definition(text: str, name: str) -> Iterator[Override]:
    """Yield every override of the function or class with this qualified name."""
    *owners, node = chain(parsed(text), name)
    assert isinstance(node, Function | ast.ClassDef)
    reached, line, indent = _reached(text, name, [*owners, node])
    around, _, last = reached.rpartition(".")
    top, owner = name.partition(".")[0], owners[-1] if owners else None
    in_class = isinstance(owner, ast.ClassDef)
    inner, lines = " " * node.col_offset, text.splitlines(keepends=True)
    end = (owner if in_class and owner else node).end_lineno or 0

    def behind(code: str) -> str:
        return _after(text, line, f"\n{indent}{code}\n")

    again = "\n{0}def {1}(*arguments, **options):\n{0}    return None\n"
    methods = (
        [m for m in owner.body if isinstance(m, Function) and m is not node] if isinstance(owner, ast.ClassDef) else []
    )
    of_self = next((m.body[-1] for m in methods if [arg.arg for arg in m.args.args[:1]] == ["self"]), None)

    harmful = {
        "later-definition": _after(text, end, again.format(inner, last)),
        "conditional": _after(text, end, f"\n{inner}if vp_flag:\n{inner}    {last} = vp_other\n"),
        "in-a-try": f"{text}\ntry:\n    from vp_fast import {top}\nexcept ImportError:\n    pass\n",
        "by-global": f"{text}\ndef vp_install():\n    global {top}\n    {top} = vp_other\n",
        "deleted": behind(f"del {reached}"),
        "assigned": behind(f"{reached} = vp_other"),
        "dead-if": "".join(indented(lines, node, "if False:")),
        "typing-only": "".join(indented(lines, node, "if TYPE_CHECKING:")),
    }
    harmless = {
        "another-assigned": behind(f"{reached}_vp = vp_other"),
        "another-definition": _after(text, end, again.format(inner, f"vp_{last}")),
    }
    if in_class:
        harmful["setattr"] = behind(f'setattr({around}, "{last}", vp_other)')
        harmless["another-setattr"] = behind(f'setattr({around}, "vp_{last}", vp_other)')
        if of_self:
            harmful["on-the-instance"] = _before(text, of_self, f"self.{last} = vp_other")
            harmful["on-the-class"] = _before(text, of_self, f"type(self).{last} = vp_other")
    if isinstance(node, Function):
        harmful["decorated"] = _before(text, node, "@vp_wrapper")
        first = next(stmt for stmt in parsed(text).body if isinstance(stmt, ast.Import | ast.ImportFrom))
        cached = _before(text, node, "@functools.cache")
        harmless["decorated-and-kept"] = _before(cached, first, "import functools")
    for kind, changed in (harmful | harmless).items():
        yield Override(kind, name, changed, kind in harmful)
    if isinstance(owner, Function):
        yield from _of_installed(text, name, owner, last)


def _of_installed(text: str, name: str, owner: Function, last: str) -> Iterator[Override]:
    """Yield what becomes of a nested function where its owner makes it an attribute, as in `cls.method = method`."""
    for stmt in ast.walk(owner):
        match stmt:
            case ast.Assign(targets=[ast.Attribute() as target], value=ast.Name(id=value)) if value == last:
                attribute, indent, end = ast.unparse(target), " " * stmt.col_offset, stmt.end_lineno or 0
                lines = text.splitlines(keepends=True)
                again, another = (f"{indent}{attribute}{behind} = vp_other\n" for behind in ("", "_vp"))
                lines[stmt.lineno - 1 : end] = [again]
                yield Override("installed-another", name, "".join(lines), harmful=True)
                yield Override("installed-and-replaced", name, _after(text, end, again), harmful=True)
                yield Override("another-installed", name, _after(text, end, another), harmful=False)


def _reached(text: str, name: str, nodes: Sequence[ast.stmt]) -> tuple[str, int, str]:
    """Return the name by which other statements reach a definition, the line behind which they may stand, and how.

    They stand in the module, or in the innermost function around the definition: a function has no attributes for what
    is defined in it, so that `outer.inner = other` overrides nothing.
    """
    functions = [depth for depth, node in enumerate(nodes[:-1]) if isinstance(node, Function)]
    if not functions:
        return name, len(text.splitlines()), ""
    first = nodes[functions[-1] + 1]
    return ".".join(name.split(".")[functions[-1] + 1 :]), first.end_lineno or 0, " " * first.col_offset


def of_anchor(text: str, name: str, anchor: ast.stmt) -> Iterator[Override]:
    """Yield mutants in which a statement of a function cannot run, and one with a harmless statement before it."""
    for kind, code in (("return", "return None"), ("raise", "raise RuntimeError"), ("a-call", "vp_log()")):
        yield Override(f"behind-{kind}", name, _before(text, anchor, code), kind != "a-call")


def of_import(text: str, function: str, name: str) -> Iterator[Override]:
    """Hide a name that the overlay imports: in the whole module, or in one function that uses it."""
    *_, node = chain(parsed(text), function)
    assert isinstance(node, Function)
    first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
    attempt = f"{text}\ntry:\n    import {name}\nexcept ImportError:\n    pass\n"
    yield Override("import-rebound", name, f"{text}\n{name} = vp_other\n", harmful=True)
    yield Override("import-rebound-in-a-try", name, attempt, harmful=True)
    for kind, hidden in (("hidden", name), ("not-hidden", f"vp_{name}")):
        changed = _before(text, first, f"{hidden} = vp_other")
        yield Override(f"import-{kind}", f"{name} in {function}", changed, kind == "hidden")


def _after(text: str, line: int, code: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:line], code, *lines[line:]])


def _before(text: str, stmt: ast.stmt, code: str) -> str:
    return _after(text, lines_of(stmt)[0], f"{' ' * stmt.col_offset}{code}\n")

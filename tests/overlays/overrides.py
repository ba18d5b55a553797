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
    """Find the definitions along a qualified name, outermost first."""
    found: list[ast.stmt] = []
    body: Sequence[ast.stmt] = tree.body
    for step in name.split("."):
        here = next(
            n for n in ast.walk(ast.Module(list(body), [])) if isinstance(n, Function | ast.ClassDef) and n.name == step
        )
        found.append(here)
        body = here.body
    return found


def of_definition(text: str, name: str) -> Iterator[Override]:
    """Yield every override of the function or class with this qualified name."""
    *owners, node = chain(parsed(text), name)
    assert isinstance(node, Function | ast.ClassDef)
    last, owner = name.rpartition(".")[2], owners[-1] if owners else None

    def made(kind: str, changed: str, *, harmful: bool = True) -> Override:
        return Override(kind, name, changed, harmful)

    inner = " " * node.col_offset
    again = f"{inner}def {last}(*arguments, **options):\n{inner}    return None\n"
    target = owner if isinstance(owner, ast.ClassDef) else node
    yield made("later-definition", _after(text, target.end_lineno or 0, f"\n{again}"))
    yield made(
        "conditional", _after(text, target.end_lineno or 0, f"\n{inner}if vp_flag:\n{inner}    {last} = vp_other\n")
    )
    yield made(
        "in-a-try", f"{text}\ntry:\n    from vp_fast import {name.partition('.')[0]}\nexcept ImportError:\n    pass\n"
    )
    yield made(
        "by-global",
        f"{text}\ndef vp_install():\n    global {name.partition('.')[0]}\n    {name.partition('.')[0]} = vp_other\n",
    )
    yield made("deleted", f"{text}\ndel {name}\n")
    yield made("assigned", f"{text}\n{name} = vp_other\n")
    yield made("dead-if", "".join(indented(text.splitlines(keepends=True), node, "if False:")))
    yield made("typing-only", "".join(indented(text.splitlines(keepends=True), node, "if TYPE_CHECKING:")))
    yield made("another-assigned", f"{text}\n{name}_vp = vp_other\n", harmful=False)
    yield made(
        "another-definition",
        _after(text, target.end_lineno or 0, f"\n{again.replace(last, 'vp_' + last)}"),
        harmful=False,
    )
    if isinstance(owner, ast.ClassDef):
        yield made("setattr", f'{text}\nsetattr({name.rpartition(".")[0]}, "{last}", vp_other)\n')
        yield made(
            "another-setattr", f'{text}\nsetattr({name.rpartition(".")[0]}, "vp_{last}", vp_other)\n', harmful=False
        )
        for method in owner.body:
            if (
                isinstance(method, Function)
                and method is not node
                and method.args.args[:1]
                and method.args.args[0].arg == "self"
            ):
                yield made("on-the-instance", _before(text, method.body[-1], f"self.{last} = vp_other"))
                yield made("on-the-class", _before(text, method.body[-1], f"type(self).{last} = vp_other"))
                break
    if isinstance(node, Function):
        yield made("decorated", _before(text, node, "@vp_wrapper"))
        first = next(stmt for stmt in parsed(text).body if isinstance(stmt, ast.Import | ast.ImportFrom))
        kept = _before(_before(text, node, "@functools.cache"), first, "import functools")
        yield made("decorated-and-kept", kept, harmful=False)


def of_anchor(text: str, name: str, anchor: ast.stmt) -> Iterator[Override]:
    """Yield mutants in which a statement of a function cannot run, and one with a harmless statement before it."""
    for kind, code in (("behind-return", "return None"), ("behind-raise", "raise RuntimeError")):
        yield Override(kind, name, _before(text, anchor, code), harmful=True)
    yield Override("behind-a-call", name, _before(text, anchor, "vp_log()"), harmful=False)


def of_import(text: str, function: str, imported: str) -> Iterator[Override]:
    """Hide a name that the overlay imports: in the whole module, or in one function that uses it."""
    *_, node = chain(parsed(text), function)
    assert isinstance(node, Function)
    first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
    yield Override("import-rebound", imported, f"{text}\n{imported} = vp_other\n", harmful=True)
    yield Override(
        "import-rebound-in-a-try",
        imported,
        f"{text}\ntry:\n    import {imported}\nexcept ImportError:\n    pass\n",
        harmful=True,
    )
    yield Override(
        "import-hidden", f"{imported} in {function}", _before(text, first, f"{imported} = vp_other"), harmful=True
    )
    yield Override(
        "import-not-hidden",
        f"{imported} in {function}",
        _before(text, first, f"vp_{imported} = vp_other"),
        harmful=False,
    )


def _after(text: str, line: int, code: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:line], code, *lines[line:]])


def _before(text: str, stmt: ast.stmt, code: str) -> str:
    first, _ = lines_of(stmt)
    return _after(text, first, f"{' ' * stmt.col_offset}{code}\n")

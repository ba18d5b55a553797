"""A harmless change is no problem: a new statement, parameter or method, in functions drawn from real releases."""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from vpatch import AddFunction
from vpatch.core.engine import Engine
from vpatch.core.landing.binding import Scope
from vpatch.core.landing.definitions import analyzed
from vpatch.core.landing.flow import Definition, statements
from vpatch.core.landing.nested import unused
from vpatch.core.overlay import Edit
from vpatch.core.parse import Source
from vpatch.core.select import names
from vpatch.core.syntax import DEFINITIONS, Spot
from vpatch.core.verdict import State
from vpatch.core.workspace import Workspace

from tests.releases import FIRST, RELEASES, tree_of
from tests.snippets import InsertBefore, header, overlay
from tests.tiers import deep, sampled

SEED, KINDS = 43, ("method", "statement", "parameter")
KEEPING = {"property", "staticmethod", "classmethod", "torch.inference_mode()", "triton.jit"}
"""Decorators that keep a function. Others may replace it, which is a problem."""


@cache
def modules(release: str) -> list[Path]:
    return sorted(path for path in (tree_of(release) / "vllm").rglob("*.py") if path.stat().st_size)


def reader(tree: Path) -> Callable[[str], bytes | None]:
    return lambda file: (tree / file).read_bytes() if (tree / file).is_file() else None


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    return {ast.unparse(one) for one in node.decorator_list}


def changes(source: Source) -> Iterator[tuple[str, Edit]]:
    """Yield the changes of a module's functions and classes, without those that something may replace."""
    named = list(names(Spot((), source.tree)))
    bound = Counter(name for name, _ in named)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.alias):
            bound[node.asname or node.name] += 1
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound[node.id] += 1
    checked = [
        node for node in source.tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    named = [(name, spot) for name, spot in named if not any(spot.node in node.body for node in checked)]
    stubbed = {
        node.name for node in ast.walk(source.tree) if isinstance(node, DEFINITIONS) and "overload" in decorators(node)
    }
    kept = {name for name, spot in named if decorators(spot.node) <= KEEPING}
    for name, spot in named:
        node = spot.node
        around = {name.rsplit(".", depth)[0] for depth in range(name.count(".") + 1)}
        if any(bound[one] > 1 for one in around) or not around <= kept or not source.block(spot):
            continue
        if name.rpartition(".")[2] in stubbed:
            continue
        if isinstance(node, ast.ClassDef):
            yield "method", AddFunction(source.file, name, "def _vpatch_new(self, a, *b):\n    return a, b")
            continue
        first = "".join(map(ast.unparse, node.body[ast.get_docstring(node) is not None :][:1]))
        once = Counter(ast.unparse(one) for one in ast.walk(node) if isinstance(one, ast.stmt))[first] == 1
        if once and "..." not in first:
            yield "statement", InsertBefore(source.file, name, first, "_vpatch_new = print")
        if node.args.args and "property" not in decorators(node):  # its accessors have the same name
            kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
            head, last = f"{kind} {node.name}", node.args.args[-1].arg
            above = name.rpartition(".")[0]
            yield "parameter", header(source.file, above, f"{head}({last})", f"{head}({last}, _vpatch_new=None)")


def drawn(release: str, times: int) -> Iterator[tuple[str, Edit]]:
    """Draw changes, as many of each kind."""
    draw = random.Random(f"{SEED} {release}")  # noqa: S311 - the same on every run
    left = dict.fromkeys(KINDS, times)
    while any(left.values()):
        path = draw.choice(modules(release))
        file = str(path.relative_to(tree_of(release)))
        found = list(changes(Workspace({file: path.read_bytes()}.get).source(file)))
        for kind, edit in draw.sample(found, min(3, len(found))):
            if left[kind]:
                left[kind] -= 1
                yield kind, edit


@pytest.mark.parametrize(
    ("release", "times"), [(FIRST[0], 5), *(deep(release, 100) for release in sampled(RELEASES, 4))]
)
def test_a_harmless_change_is_no_problem(release: str, times: int) -> None:
    problems = []
    for kind, edit in drawn(release, times):
        (found,) = Engine([overlay(edit)]).status(reader(tree_of(release)))
        if found.state is not State.PENDING:
            problems.append(f"{kind} {edit.file} {edit.scope}: {found.because}")
    assert problems == []


@pytest.mark.deep
def test_a_nested_function_of_a_release_is_used() -> None:
    """In the modules that restore what they replaced for a while: there an attribute gets a second value."""
    seen, problems = 0, []
    for path in modules(RELEASES[-1]):
        if "finally:" in (text := path.read_text()):
            module = analyzed(ast.parse(text))
            for definition, scope in nested(module.scope):
                seen += 1
                problems += [f"{path.name}: {cause}" for cause in unused(definition, scope, module, int)]
            module.scope.free()
    assert problems == []
    assert seen > 100


def nested(scope: Scope) -> Iterator[tuple[Definition, Scope]]:
    for stmt in statements(scope.node.body):
        if isinstance(stmt, Definition):
            yield stmt, scope
            yield from nested(scope.inner(stmt))

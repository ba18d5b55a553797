"""The power of the tests: `python -m tests.mutation --seed 16 --count 120` makes mistakes in `builder/`, one at a time.

cosmic-ray makes and undoes them. Each is a mutant: the tests of its room kill it, or it survives. Its name is module,
definition, operator and occurrence, and it is drawn by a hash of that name and the seed: two commits have the same
mutants wherever they have the same code. The sources change in place, so run it in a clone of its own.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import ast
import hashlib
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast_from_path  # type: ignore[import-not-found]
from cosmic_ray.ast.ast_query import ASTQuery  # type: ignore[import-not-found]
from cosmic_ray.mutating import mutate_and_test, mutate_code  # type: ignore[import-not-found]
from cosmic_ray.plugins import get_operator, operator_names  # type: ignore[import-not-found]
from cosmic_ray.work_item import MutationSpec, TestOutcome  # type: ignore[import-not-found]

from tests.paths import ROOT

SOURCES = ROOT / "builder/vpatch"
OPERATORS = re.compile(
    r"core/(AddNot|ExceptionReplacer|NumberReplacer|RemoveDecorator|ZeroIterationForLoop|Replace\w+With\w+"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_FloorDiv|FloorDiv_Mul|Div_Mul|Mod_Mul|BitAnd_BitOr|BitOr_BitAnd)"
    r"|ReplaceComparisonOperator_(Eq_NotEq|NotEq_Eq|Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Is_IsNot|IsNot_Is)"
    r"|ReplaceUnaryOperator_(Delete_Not|USub_UAdd))"
)
"""cosmic-ray's operators; of those that replace an operator of Python, one for each."""

BESIDE = {
    "guest": ("tests/overlays/test_receipt.py", "tests/tree"),
    "net": ("tests/release", "tests/image/registry/test_push.py", "tests/image/registry/test_bad_input.py"),
    "processes": ("tests/test_servers.py",),
}
"""More tests of rooms: they have no folder in `tests/`, or their users show what they do."""


@dataclass(frozen=True)
class Mutant:
    """One mistake; `number` counts the operator's places in the definition, and `occurrence` in the module."""

    path: Path
    definition: str
    operator: str
    number: int
    occurrence: int

    def __str__(self) -> str:
        return f"{self.path.relative_to(SOURCES)} {self.definition} {self.operator} {self.number}"

    def is_a_mistake(self) -> bool:
        """Whether it is valid Python, and changes more than an annotation, which nothing evaluates."""
        before = self.path.read_text()
        try:
            after = _without_annotations(mutate_code(before, get_operator(self.operator)(), self.occurrence))
        except SyntaxError:
            return False
        return after != _without_annotations(before)


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a module."""
    nodes = list(ast_nodes(get_ast_from_path(path)))
    for name in filter(OPERATORS.fullmatch, operator_names()):
        operator, numbers = get_operator(name)(), Counter[str]()
        places = [node for node in nodes for _ in operator.mutation_positions(node)]
        for occurrence, node in enumerate(places):
            definition = ASTQuery(node).get_definition_name() or "module"
            yield Mutant(path, definition, name, numbers[definition], occurrence)
            numbers[definition] += 1


def draw(seed: int, count: int, only: str = "") -> Iterator[Mutant]:
    """Yield mutants of the modules whose path contains a text, in the order of a seed."""
    paths = [path for path in sorted(SOURCES.rglob("*.py")) if only in path.relative_to(SOURCES).as_posix()]
    every = [one for path in paths for one in mutants(path)]
    every.sort(key=lambda one: hashlib.sha256(f"{seed} {one}".encode()).digest())
    yield from islice((one for one in every if one.is_a_mistake()), count)


def tests_of(path: Path) -> tuple[str, ...]:
    """Return the tests of a module by the rule of tests/README.md, those named for it first."""
    *rooms, name = path.relative_to(SOURCES).with_suffix("").parts
    folders = [ROOT.joinpath("tests", *rooms[:depth]) for depth in range(len(rooms), 0, -1)]
    folder = next(filter(Path.is_dir, folders), ROOT / "tests")
    named = sorted(folder.glob(f"test_{name}*.py"))
    found = named if folder == ROOT / "tests" else [*named, folder]
    own = tuple(one.relative_to(ROOT).as_posix() for one in found)
    return (*own, *BESIDE.get(rooms[0] if rooms else "", ())) or ("tests/cli",)


def main() -> None:
    """Draw mutants, run their tests, and print which survived."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--count", type=int, default=120)
    parser.add_argument("--only", default="", help="only modules whose path contains this")
    options = parser.parse_args()
    if subprocess.run(["git", "diff", "--quiet", "HEAD", "builder"], cwd=ROOT, check=False).returncode:
        parser.error("builder/ has changes: commit them, so that `git checkout builder` undoes a mutant that stays")
    states = Counter[str]()
    for mutant in draw(options.seed, options.count, options.only):
        tests = tests_of(mutant.path)
        if not _pass(tests):
            parser.error(f"fail without a mutant: {' '.join(tests)}")
        spec = MutationSpec(mutant.path, mutant.operator, mutant.occurrence, (1, 0), (1, 1))
        result = mutate_and_test([spec], _command(tests), timeout=600)  # then it counts as killed
        states[result.test_outcome.value] += 1
        print(f"{result.test_outcome.value:8}  {mutant}", flush=True)
        if result.test_outcome == TestOutcome.SURVIVED:
            print(*re.findall(r"^[-+](?![-+]).*", result.diff, re.MULTILINE), sep="\n", flush=True)
    print(f"seed {options.seed}, {states.total()} mutants: {states['killed']} killed, {states['survived']} survived")


def _command(tests: tuple[str, ...]) -> str:
    return shlex.join([sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", *tests])


@cache
def _pass(tests: tuple[str, ...]) -> bool:
    """Whether tests pass without a mutant."""
    return subprocess.run(shlex.split(_command(tests)), cwd=ROOT, capture_output=True, check=False).returncode == 0


def _without_annotations(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


if __name__ == "__main__":
    main()

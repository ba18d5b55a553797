"""Hostile mutants of a release, with renamed variables and overridden definitions: refused, or patched correctly.

    python -m tests.overlays.hostile --count 2000 0.20.2 0.24.0 0.33.0

An applied mutant is wrong if the same rename of the patched release gives another text, since a name in the inserted
code then means something else, or if the mutation overrides what an overlay changes (`tests.overlays.overrides`).
"""

from __future__ import annotations

import argparse
import ast
import random
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from vpatch.core.catalogue import discover
from vpatch.core.edits.hunk import Aligned
from vpatch.core.edits.patch import Patch
from vpatch.core.engine import Engine
from vpatch.core.judge import judge
from vpatch.core.overlay import COMPANIONS, Catalogued, Edit, Part, Shape
from vpatch.core.parse import Source
from vpatch.core.predicates import All, AnyOf, Contains, Meaning, Not, Unclear
from vpatch.core.syntax import DEFINITIONS, along
from vpatch.core.verdict import Changeset, EditFinding, State
from vpatch.core.workspace import Workspace
from vpatch.tree.locate import Tree, locate

from tests.engines import engine_of
from tests.overlays import overrides
from tests.overlays.mutants import compiles
from tests.overlays.overrides import Override
from tests.overlays.renames import Span, Variable, renamed, typing_only, variables
from tests.releases import tree_of
from tests.session import spare_the_collector

HEADER = """# Mutants of vLLM

Does vpatch notice a refactoring of vLLM that makes an overlay wrong? Each mutant is a file of vLLM that overlays
change, with one variable renamed throughout or one definition overridden. vpatch applies the overlays to it, or
refuses.

The column "wrong" counts two kinds of mistakes: vpatch applied an overlay although a name in the new code means
something else there, or although the changed code never runs; or it refused a harmless override. Each would be listed
below the table. To count again:

    {command}"""


class Result(NamedTuple):
    """Outcome of one mutant; `wrong` explains why applying it was wrong, or refusing it unnecessary."""

    kind: str
    what: str
    refused: bool
    wrong: str


_CONTEXT = 2
"""Lines of context beyond which a hunk knows more than the neighbours of what it changes."""


def _goes(item: Aligned) -> bool:
    return item.new is None and isinstance(item.old, DEFINITIONS)


@dataclass
class File:
    """A module that overlays change, before and after, with the overlays and their findings."""

    name: str
    text: str
    patched: str
    source: Source
    items: list[Catalogued]
    found: list[tuple[Edit, EditFinding]]

    @cached_property
    def engine(self) -> Engine:
        return Engine(self.items)

    @cached_property
    def variables(self) -> Mapping[Variable, list[Span]]:
        return dict(sorted(variables(self.text).items(), key=lambda item: str(item[0])))

    @cached_property
    def patched_variables(self) -> Mapping[Variable, list[Span]]:
        return variables(self.patched)

    def misnamed(self, variable: Variable, new: str, result: str) -> str:
        """Return what a rename has broken in the patched file that has it; "" if nothing."""
        known = self.patched_variables
        if variable in known and renamed(self.patched, known[variable], new) != result:
            return "the new code has the old name"
        hidden = Variable("module", "", new)
        if variable.kind == "module" and variable.name in typing_only(self.text):
            return ""  # nothing has its new name when the code runs
        captured = hidden in known and len(variables(result).get(hidden, ())) != len(known[hidden])
        return f"the new code's `{new}` is another one" if captured else ""

    @cached_property
    def scopes(self) -> list[str]:
        """The functions and classes that edits change."""
        return sorted({edit.scope for edit, _ in self.found if edit.scope})

    @cached_property
    def overrides(self) -> list[Override]:
        """Every override of what the edits change, read and import."""
        tree = overrides.parsed(self.text)
        made: list[Override] = []
        for scope in self.scopes:
            steps = scope.split(".")
            for depth in range(1, len(steps) + 1):
                made += overrides.of_definition(self.text, ".".join(steps[:depth]))
        for edit, finding in self.found:
            known = (*finding.regions, *finding.context)
            headers = {path[:-1] for path in known if path[-1][1] < 0}
            for path in known:
                path = path[:-1] if path[-1][0] == "header" else path  # noqa: PLW2901
                if path[-1][0].startswith("gap"):
                    continue
                *_, anchor = (node for node in along(tree, path) if isinstance(node, ast.stmt))
                if edit.scope and not isinstance(anchor, overrides.Function | ast.ClassDef):
                    *above, (block, index) = path
                    # It begins by the statement before, or knows the whole of this block: those in a hunk are closed.
                    exact = (*above, (block, index - 1)) in finding.regions or tuple(above) in headers
                    made += [o for o in overrides.of_anchor(self.text, edit.scope, anchor) if o.harmful or not exact]
        for where in self.scopes:
            *_, definition = overrides.chain(overrides.parsed(self.patched), where)
            used = {node.id for node in ast.walk(definition) if isinstance(node, ast.Name)} & self._imported
            for name in sorted(used) if isinstance(definition, overrides.Function) else ():
                made += overrides.of_import(self.text, where, name)
        return list(dict.fromkeys(made))

    def fits(self, override: Override) -> bool:
        """Whether an override compiles and, if harmless, leaves alone the functions that an overlay knows exactly.

        An edit replaces them as a whole, or a shape or the context of a hunk is for consecutive statements in them.
        """
        hunks = [(edit.scope, edit.hunk) for edit, _ in self.found if isinstance(edit, Patch)]
        whole = [f"{scope}.{one.old.name}" for scope, hunk in hunks for one in hunk.items if _goes(one)]
        whole += [scope for scope, hunk in hunks if sum(item.stays for item in hunk.every) > _CONTEXT]
        shapes = (shape for item in self.items for part in item.overlay.parts for shape in part.shapes)
        asked = (predicate for shape in shapes if shape.when for predicate in _leaves(shape.when))
        whole += [p.scope for p in asked if p.file == self.name and p.scope and "\n" in p.code.strip()]
        if not compiles(override.text):
            return False
        if override.harmful or not whole:
            return True
        old, new = overrides.parsed(self.text), ast.parse(override.text)
        nodes = (([*map(ast.dump, overrides.chain(tree, name)[-1:])] for tree in (old, new)) for name in whole)
        return all(one == other for one, other in nodes)

    @cached_property
    def _imported(self) -> set[str]:
        """The names that only the overlays import into the module, not upstream."""
        old, new = (
            {a.asname or a.name for n in ast.parse(t).body if isinstance(n, ast.ImportFrom) for a in n.names}
            for t in (self.text, self.patched)
        )
        return new - old

    def rename(self, rng: random.Random) -> tuple[Variable, str, str]:
        """Rename a variable, mostly one of an edited function, and sometimes to a name that the overlay imports."""
        near = [v for v in self.variables if v.kind == "local" and v.scope in self.scopes]
        hidden = sorted(self._imported)
        while True:
            kind = rng.choice(("local", "attribute", "module"))
            others = [v for v in self.variables if v.kind == kind]
            variable = rng.choice(near if near and rng.random() < 0.5 else others or list(self.variables))
            plain = (f"vp_{variable.name}", f"{variable.name}_", f"_{variable.name}")
            new = rng.choice(hidden) if hidden and rng.random() < 0.1 else rng.choice(plain)
            text = renamed(self.text, self.variables[variable], new)
            if compiles(text):
                return variable, new, text


def _leaves(predicate: object) -> Iterator[Contains]:
    """Yield the questions after code in a predicate."""
    match predicate:
        case Contains():
            yield predicate
        case All(several) | AnyOf(several):
            for one in several:
                yield from _leaves(one)
        case Not(one) | Meaning(one) | Unclear(one):
            yield from _leaves(one)


@dataclass
class Release:
    """A pristine release with all overlays, the opt-in ones included."""

    root: Path

    def read(self, file: str) -> bytes | None:
        """Read a file; of a folder, return the listing, without which some overlays take vLLM for an older one."""
        return self._tree.read(file)

    @cached_property
    def _tree(self) -> Tree:
        return locate(self.root)

    @cached_property
    def files(self) -> list[File]:
        """The modules that pending overlays change."""
        overlays = discover()
        engine = engine_of(overlays)
        workspace = Workspace(self.read, engine._cache)  # parses what the plan does, once
        made = engine.plan(self.read)
        assert not made.problems
        found: dict[str, list[tuple[Catalogued, Edit, EditFinding]]] = {}
        matched: set[tuple[Edit, ...]] = set()
        for item in overlays:
            for part in judge(item, workspace).parts:
                if part.verdict.state is State.PENDING:
                    matched.add(tuple(edit for edit, _ in part.findings))
                    for edit, finding in part.findings:
                        found.setdefault(edit.file, []).append((item, edit, finding))
        files = []
        for name, data in made.files.items():
            if not name.startswith(COMPANIONS):
                text = (self.read(name) or b"").decode()
                items = {item.id: _only(item, name, matched) for item, _, _ in found[name]}
                findings = [(edit, finding) for _, edit, finding in found[name]]
                files.append(File(name, text, data.decode(), workspace.source(name), list(items.values()), findings))
        return files

    @cached_property
    def contents(self) -> set[bytes]:
        """The contents of the files that the overlays read."""
        return {data for file in engine_of(discover()).files if (data := self.read(file)) is not None}

    def plan(self, file: File, text: str, companions: Mapping[str, bytes] | None = None) -> Changeset:
        """Apply a file's overlays to a mutant of it, in a tree that may have their companions."""
        known = {**(companions or {}), file.name: text.encode()}
        changeset = file.engine.plan(lambda name: known[name] if name in known else self.read(name))
        file.engine.forget(self.contents)
        return changeset

    def outcome(self, file: File, text: str) -> tuple[bool, str, str]:
        """Apply a file's overlays to a mutant of it; return whether they refuse, the resulting text, and why."""
        changeset = self.plan(file, text)
        refused = any(verdict.state is State.DRIFTED for verdict in changeset.before)
        assert refused or not changeset.problems, changeset.problems
        because = "; ".join(map(str, changeset.problems))
        return refused, changeset.files.get(file.name, text.encode()).decode(), because

    def run(self, count: int, seed: int) -> Iterator[Result]:
        """Make and judge `count` mutants: about half overrides of either kind, the rest renames."""
        rng = random.Random(seed)  # noqa: S311 - it is to be repeatable
        files = self.files
        pool = [(file, override) for file in files for override in file.overrides]
        rng.shuffle(pool)
        harmful = [pair for pair in pool if pair[1].harmful]
        harmless = [pair for pair in pool if not pair[1].harmful]
        chosen = _mixed(harmful, count * 2 // 5) + _mixed(harmless, count // 10)
        for file, override in chosen:
            refused, _, because = self.outcome(file, override.text)
            wrong = "" if refused is override.harmful else because or "applied"
            yield Result(override.kind, f"{file.name}: {override.what}", refused, wrong)
        for _ in range(count - len(chosen)):
            file = rng.choice(files)
            variable, new, text = file.rename(rng)
            refused, result, _ = self.outcome(file, text)
            wrong = "" if refused else file.misnamed(variable, new, result)
            yield Result(f"renamed-{variable.kind}", f"{file.name}: {variable.scope}.{variable.name}", refused, wrong)


def _only(item: Catalogued, file: str, matched: Collection[tuple[Edit, ...]]) -> Catalogued:
    """Drop what a mutant of a file cannot affect: parts that edit others, and edits of `matched` shapes elsewhere.

    Companions stay, for the file imports them.
    """

    def only(shape: Shape) -> Shape:
        here = [edit for edit in shape.edits if edit.file == file or edit.file.startswith(COMPANIONS)]
        return Shape(shape.name, here, shape.when, shape.note) if shape.edits in matched else shape

    parts = tuple(
        Part(part.name, map(only, part.shapes), part.merged, part.absent, part.upstream)
        for part in item.overlay.parts
        if file in part.files
    )
    return replace(item, overlay=replace(item.overlay, parts=parts))


def _mixed(pool: list[tuple[File, Override]], count: int) -> list[tuple[File, Override]]:
    """Take overrides that fit, evenly from each kind."""
    kinds: dict[str, list[tuple[File, Override]]] = {}
    for pair in pool:
        kinds.setdefault(pair[1].kind, []).append(pair)
    chosen: list[tuple[File, Override]] = []
    while len(chosen) < count and any(kinds.values()):
        drawn = [pairs.pop() for pairs in kinds.values() if pairs]
        chosen += [(file, override) for file, override in drawn if file.fits(override)]
    return chosen[:count]


def table(results: list[Result]) -> Iterator[str]:
    """Count the results by kind, as a Markdown table."""
    yield "| mutation | mutants | refused | applied | wrong |"
    yield "|---|---|---|---|---|"
    for name in (*sorted({result.kind for result in results}), "all"):
        these = [result for result in results if name in (result.kind, "all")]
        refused = sum(result.refused for result in these)
        wrong = sum(bool(result.wrong) for result in these)
        yield f"| {name} | {len(these)} | {refused} | {len(these) - refused} | {wrong} |"


def run_release(version: str, count: int, seed: int) -> tuple[list[Result], float]:
    """Run mutants of a release; return the results and the seconds that they took."""
    started = time.monotonic()
    results = list(Release(tree_of(version)).run(count, seed))
    return results, time.monotonic() - started


def main() -> int:
    """Run mutants of releases, print the outcomes as Markdown, and exit with 1 if any is wrong."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("releases", nargs="+", metavar="RELEASE")
    parser.add_argument("--count", type=int, default=200, help="mutants of each release")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    count, seed = options.count, options.seed
    command = f"python -m tests.overlays.hostile --count {count} --seed {seed} {' '.join(options.releases)}"
    print(HEADER.format(command=command), flush=True)  # noqa: T201
    all_wrong = []
    with ProcessPoolExecutor(initializer=spare_the_collector) as pool:
        runs = [pool.submit(run_release, version, count, seed) for version in options.releases]
        for version, ran in zip(options.releases, runs, strict=True):
            results, seconds = ran.result()
            wrong = [f"- {one.kind}, {one.what}: {one.wrong}" for one in results if one.wrong]
            title = f"\n## vLLM {version}: {len(results)} mutants in {seconds:.0f} s\n"
            print(title, *table(results), *wrong, sep="\n", flush=True)  # noqa: T201
            all_wrong += wrong
    return int(bool(all_wrong))


if __name__ == "__main__":
    raise SystemExit(main())

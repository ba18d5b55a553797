"""Mutants of the modules that an overlay touches: each is patched correctly or `drifted`, never an exception.

In the environment `MUTANTS=2` makes 20,000 of them, in more than an hour of CPU time. Without it there are some 2,000.
"""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine, Read
from vpatch.core.judge import judge
from vpatch.core.marks import mark
from vpatch.core.overlay import COMPANIONS, Catalogued
from vpatch.core.verdict import Changeset, State
from vpatch.core.workspace import Workspace

from tests.overlays.meaning import attributes, meanings, worse
from tests.overlays.mutants import KINDS, Mutant, Mutator, mutants
from tests.overlays.mutations import places
from tests.tiers import sampled

DRAWS = int(os.environ.get("MUTANTS", "0"))

pytestmark = [pytest.mark.no_cover, pytest.mark.deep]  # other tests cover the same code; coverage doubles the time

# Each release and overlay, how many mutants to make, and how many of each kind, at the least, at each edit.
SUBJECTS = (
    ("0.20.2", "turboquant-hybrid", 270, 3),
    ("0.20.2", "turboquant-workspace", 90, 3),
    ("0.21.0", "turboquant-workspace", 75, 3),
    ("0.21.0", "turboquant-skip-list", 60, 3),
    ("0.26.0", "turboquant-auto-dtype", 100, 3),
    ("0.20.2", "turboquant-tiles", 100, 3),
    ("0.21.0", "turboquant-mtp", 100, 3),
    ("0.20.2", "hybrid-mtp-prefix", 60, 3),
    ("0.20.2", "hybrid-mtp-counts", 100, 3),
    ("0.20.2", "hybrid-mtp-gates", 60, 3),
    ("0.20.2", "hybrid-mtp-states", 72, 1),
    ("0.26.0", "turboquant-decode", 110, 1),
    *((release, "ct-fp8-lm-head", 270, 3) for release in ("0.20.2", "0.33.0")),
)


@dataclass
class Subject:
    """An overlay, a pristine release that it applies to, and the result of applying it."""

    item: Catalogued
    root: Path
    count: int
    each: int
    made: Changeset = field(init=False)
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = Engine([self.item])
        self.made = self.engine.plan(self.pristine)

    def pristine(self, file: str) -> bytes | None:
        path = self.root / file
        return path.read_bytes() if path.is_file() else None

    def plan(self, read: Read) -> Changeset:
        """Plan for a mutant, and drop its contents from the engine's cache."""
        changeset = self.engine.plan(read)
        self.engine.forget(self._known)
        return changeset

    @cached_property
    def _known(self) -> set[bytes]:
        read = (self.pristine(file) for file in self.engine.files)
        return {data for data in read if data is not None} | set(self.made.files.values())

    def patched(self, file: str) -> bytes | None:
        return self.made.files.get(file, self.pristine(file))

    def with_file(self, read: Read, file: str, text: str) -> Read:
        return lambda name: text.encode() if name == file else read(name)

    @cached_property
    def mutators(self) -> list[Mutator]:
        files = Workspace(self.pristine)
        found = [pair for part in judge(self.item, files).parts for pair in part.findings]
        made = {file: data.decode() for file, data in self.made.files.items() if not file.startswith(COMPANIONS)}
        return [Mutator(files.source(file), text, found) for file, text in made.items()]


@pytest.fixture(scope="module", params=sampled(SUBJECTS, 7), ids=lambda param: f"{param[0]}-{param[1]}")
def subject(request: pytest.FixtureRequest, pristine: Callable[[str], Path]) -> Subject:
    version, name, count, each = request.param
    return Subject(select(discover(), (name,))[0], pristine(version), count, each)


def dump(text: str | bytes) -> str:
    return ast.dump(ast.parse(text))


def without_imports(text: str, made: set[str]) -> tuple[str, Counter[str]]:
    """Separate the imports that the overlay added at a module's top from the rest of its syntax."""
    tree = ast.parse(text)
    dumps = [ast.dump(node) for node in tree.body]
    tree.body = [node for node, code in zip(tree.body, dumps, strict=True) if code not in made]
    return ast.dump(tree), Counter(code for code in dumps if code in made)


def simple_statements(text: str | bytes) -> Counter[str]:
    """Count the simple statements of a module, regardless of their order."""
    return Counter(ast.dump(place.node) for place in places(ast.parse(text).body) if not hasattr(place.node, "body"))


def outcome(subject: Subject, mutant: Mutant) -> str:
    """Apply the overlay to a mutant and assert the expected outcome; return the outcome."""
    read = subject.with_file(subject.pristine, mutant.file, mutant.text)
    changeset = subject.plan(read)
    (before,), (after,) = changeset.before, changeset.after
    compile(changeset.files.get(mutant.file, b""), mutant.file, "exec", dont_inherit=True)
    if mutant.fate == "drifted" or (mutant.fate == "leaned" and before.state is State.DRIFTED):
        assert before.state is State.DRIFTED, f"{before.state}: {before.because}"
        assert changeset.problems
        assert not changeset.files
        return "drifted"

    if before.state is State.DRIFTED and _loses_a_name(subject, mutant, str(before.because)):
        assert not changeset.files
        return "unbound"

    if mutant.kind == "literal" and before.state is State.DRIFTED and " never runs: " in str(before.because):
        assert not changeset.files  # as in `while False`
        return "unreachable"

    assert before.state is State.PENDING, f"{before.because}: {[str(p) for p in changeset.problems]}"
    assert after.state is State.APPLIED
    for file, data in subject.made.files.items():
        assert file == mutant.file or changeset.files[file] == data
    result = changeset.files.get(mutant.file, mutant.text.encode()).decode()
    if mutant.fate == "free":
        assert result == mutant.twin
        return "free"
    if mutant.fate == "moved":
        assert simple_statements(result) == simple_statements(mutant.twin)
        return "moved"
    if result == mutant.twin or dump(result) == dump(mutant.twin):
        return "equal"
    old, new = (
        ast.parse(text).body for text in (subject.pristine(mutant.file) or b"", subject.made.files[mutant.file])
    )
    added = {ast.dump(node) for node in new if isinstance(node, ast.Import | ast.ImportFrom | ast.If)}
    added -= {ast.dump(node) for node in old}
    assert without_imports(result, added) == without_imports(mutant.twin, added)
    return "placed" if mutant.fate == "equal" else mutant.fate


def _loses_a_name(subject: Subject, mutant: Mutant, because: str) -> bool:
    """Whether a name that the overlay's code reads, or sets for others, loses its binding in the patched mutant.

    What a companion reads of `self` is no name in the module: the overlay declares it, and the refusal names it.
    """
    pristine = (subject.pristine(mutant.file) or b"").decode()
    if any(f"relies on `self.{name}`" in because for name in attributes(pristine) - attributes(mutant.text)):
        return True
    made = meanings(pristine, subject.made.files[mutant.file].decode())
    return bool(worse(made, meanings(mutant.text, mutant.twin)))


def run(subject: Subject, count: int, each: int, seed: int) -> tuple[Counter[str], list[Mutant]]:
    share = count // len(subject.mutators)
    chosen = [mutant for mutator in subject.mutators for mutant in mutants(mutator, share, each, seed)]
    failures, outcomes = [], Counter[str]()
    for mutant in chosen:
        try:
            outcomes[outcome(subject, mutant)] += 1
        except Exception as error:
            failures.append(f"{mutant}: {type(error).__name__}: {str(error)[:300]}")
    assert not failures, "\n".join(failures)
    return outcomes, chosen


def test_a_mutant_is_patched_as_its_twin_or_drifts(subject: Subject) -> None:
    outcomes, chosen = run(subject, subject.count, subject.each, seed=20)

    assert len(chosen) >= 0.8 * subject.count
    assert {mutant.kind for mutant in chosen} == set(KINDS)
    assert sum(mutant.near for mutant in chosen) >= len(chosen) / 3
    assert outcomes["equal"] + outcomes["free"] >= len(chosen) / 3
    assert outcomes["drifted"] >= len(chosen) / 12
    free = any(region.free for mutator in subject.mutators for region in mutator.regions)
    assert (outcomes["free"] > 0) is free
    # Not comparable one to one: the order of anchor statements, and the place of an added import.
    assert sum(outcomes[kind] for kind in ("moved", "placed", "leaned")) <= len(chosen) / 20


@pytest.mark.parametrize("seed", range(DRAWS or 1))
def test_many_mutants(subject: Subject, seed: int) -> None:
    run(subject, 4 * subject.count if DRAWS else subject.count // 4, each=6 if DRAWS else 1, seed=seed)


def test_a_patched_mutant_is_applied_only_if_every_added_statement_is_left(subject: Subject) -> None:
    states, failures = Counter[State](), []
    back = Subject(subject.item, subject.root, subject.count, subject.each)
    back.pristine, back.made = subject.patched, Changeset((), (), dict(subject.made.files), ())  # type: ignore[method-assign]
    for mutator in back.mutators:
        made = simple_statements(subject.made.files[mutator.file])
        made -= simple_statements(subject.pristine(mutator.file) or b"")
        marked = subject.made.files[mutator.file].decode().count(mark(subject.item.id))
        # Every region takes its share first; this count leaves mutants for the rest of the file.
        for mutant in mutants(mutator, max(30, 8 * len(mutator.regions)), 1, 7):
            read = subject.with_file(subject.patched, mutant.file, mutant.text)
            (verdict,) = subject.plan(read).before
            states[verdict.state] += 1
            left = simple_statements(mutant.text)
            # Code that no edit looks at may change, even in a statement that gained an argument.
            harmless = mutant.fate in {"equal", "free"}
            whole = (made <= left or harmless) and mutant.text.count(mark(subject.item.id)) >= marked
            free = mutant.fate == "free" and verdict.state is not State.APPLIED
            wrong = verdict.state in {State.MERGED, State.NOT_APPLICABLE} or free
            if wrong or (verdict.state is State.APPLIED and not whole):
                failures.append(f"{mutant}: {verdict.state}")

    assert not failures, "\n".join(failures)
    assert states[State.APPLIED] >= states.total() / 5
    assert states[State.DRIFTED] >= states.total() / 10

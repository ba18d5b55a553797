"""Drawn changes of the modules that an overlay touches: each is patched correctly or refused, never an exception.

Of renames and overrides, docs/mutants.md counts many more.
"""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from vpatch.core.catalogue import discover, select
from vpatch.core.engine import Engine
from vpatch.core.judge import judge
from vpatch.core.marks import mark
from vpatch.core.overlay import COMPANIONS
from vpatch.core.verdict import State, Verdict
from vpatch.core.workspace import Workspace

from tests.engines import over
from tests.overlays.hostile import run_release
from tests.overlays.meaning import attributes, meanings, worse
from tests.overlays.mutants import KINDS, STATEMENTS, Mutant, Mutator, mutants, places
from tests.tiers import WHOLE, deep, sampled

pytestmark = pytest.mark.no_cover  # other tests cover the same code; coverage doubles the time

FIRST = ("0.20.2", "turboquant-workspace")
SUBJECTS = (
    ("0.20.2", "turboquant-hybrid"),
    ("0.26.0", "turboquant-decode"),
    ("0.33.0", "ct-fp8-lm-head"),
    ("0.20.2", "hybrid-mtp-counts"),
    ("0.21.0", "turboquant-workspace"),
    ("0.21.0", "turboquant-skip-list"),
    ("0.26.0", "turboquant-auto-dtype"),
    ("0.20.2", "turboquant-tiles"),
    ("0.21.0", "turboquant-mtp"),
    ("0.20.2", "hybrid-mtp-prefix"),
    ("0.20.2", "hybrid-mtp-gates"),
    ("0.20.2", "hybrid-mtp-states"),
    ("0.20.2", "ct-fp8-lm-head"),
)
EACH, MANY = 2, 40
"""Mutants of each kind in each file."""


@dataclass(frozen=True)
class Subject:
    """An overlay, and a release on which it is pending."""

    root: Path
    overlay: str

    def read(self, file: str) -> bytes | None:
        path = self.root / file
        return path.read_bytes() if path.is_file() else None

    @cached_property
    def engine(self) -> Engine:
        return Engine(select(discover(), (self.overlay,)))

    @cached_property
    def made(self) -> Mapping[str, bytes]:
        """The files of the release as the overlay changes them."""
        return self.engine.plan(self.read).files

    def planned(self, mutant: Mutant, *, patched: bool) -> tuple[Verdict, bytes | None]:
        """Return the verdict on a mutant of the release, as published or patched, and the file that results."""
        files = dict(self.made) if patched else {}
        changeset = self.engine.plan(over({**files, mutant.file: mutant.text.encode()}, self.read))
        self.engine.forget({*self.made.values(), *filter(None, map(self.read, self.engine.files))})
        (before,) = changeset.before
        assert not changeset.files or {verdict.state for verdict in changeset.after} == {State.APPLIED}
        return before, changeset.files.get(mutant.file)

    def mutators(self, *, patched: bool) -> Iterator[Mutator]:
        files = Workspace(over(self.made, self.read) if patched else self.read)
        (item,) = self.engine.overlays
        found = [pair for part in judge(item, files).parts for pair in part.findings]
        for file in self.made:
            if not file.startswith(COMPANIONS):
                yield Mutator(files.source(file), found)


@pytest.fixture(scope="module", params=[FIRST, *map(deep, sampled(SUBJECTS, 4))], ids="-".join)
def subject(request: pytest.FixtureRequest, pristine: Callable[[str], Path]) -> Subject:
    release, overlay = request.param
    return Subject(pristine(release), overlay)


def statements(text: str | bytes) -> Counter[str]:
    """Count the simple statements of a module, regardless of their order."""
    return Counter(ast.dump(place.node) for place in places(ast.parse(text).body) if not hasattr(place.node, "body"))


def merged(folder: Path, *texts: bytes) -> str | None:
    """Return a file with the changes of two versions to a third, which comes second; None if they conflict."""
    for number, text in enumerate(texts):
        (folder / str(number)).write_bytes(text)
    ran = subprocess.run(["git", "merge-file", "-p", "0", "1", "2"], cwd=folder, capture_output=True, check=False)
    return None if ran.returncode else ran.stdout.decode()


def loses_a_name(pristine: str, patched: str, mutant: Mutant, twin: str | None, because: str) -> bool:
    """Whether a name that the overlay's code reads, or sets for others, loses its binding in the patched mutant."""
    if any(f"relies on `self.{name}`" in because for name in attributes(pristine) - attributes(mutant.text)):
        return True
    return twin is None or bool(worse(meanings(pristine, patched), meanings(mutant.text, twin)))


def outcome(subject: Subject, folder: Path, mutant: Mutant) -> str:
    """Apply the overlay to a mutant, and hold what becomes of it."""
    pristine, patched = subject.read(mutant.file) or b"", subject.made[mutant.file]
    twin = merged(folder, patched, pristine, mutant.text.encode())
    before, result = subject.planned(mutant, patched=False)
    if before.state is State.DRIFTED:
        because = str(before.because)
        never = mutant.kind == "literal" and " never runs: " in because  # as in `while False`
        assert result is None
        assert (
            mutant.fate != "applies"
            or never
            or loses_a_name(pristine.decode(), patched.decode(), mutant, twin, because)
        ), because
        return "drifted"
    assert mutant.fate != "drifts"
    assert before.state is State.PENDING, before.because
    assert result is not None
    compile(result, mutant.file, "exec", dont_inherit=True)
    if mutant.fate == "applies":
        made = statements(patched)
        made.subtract(statements(pristine))
        made.update(statements(mutant.text))
        assert +made == statements(result)
        assert twin is None or ast.dump(ast.parse(twin)) == ast.dump(ast.parse(result))
    return "applied"


def after(subject: Subject, _: Path, mutant: Mutant) -> str:
    """Hold what becomes of a mutant of the patched file: it is applied only if every added statement is left."""
    before, _result = subject.planned(mutant, patched=True)
    patched = subject.made[mutant.file]
    added = statements(patched) - statements(subject.read(mutant.file) or b"")
    marks = [text.count(mark(subject.overlay)) for text in (patched.decode(), mutant.text)]
    assert before.state not in {State.MERGED, State.NOT_APPLICABLE}
    known = mutant.fate == "drifts" or (mutant.fate == "either" and mutant.kind in STATEMENTS)
    if before.state is State.APPLIED and known:
        assert added <= statements(mutant.text)
        assert marks[0] <= marks[1]
    return str(before.state)


@pytest.mark.parametrize("hold", [outcome, after])
def test_a_mutant_is_patched_as_the_release_is_or_drifts(
    hold: Callable[[Subject, Path, Mutant], str], subject: Subject, tmp_path: Path
) -> None:
    outcomes, failures = Counter[tuple[str, str]](), []
    for mutator in subject.mutators(patched=hold is after):
        for mutant in mutants(mutator, MANY if WHOLE else EACH, seed=20):
            try:
                outcomes[mutant.kind, hold(subject, tmp_path, mutant)] += 1
            except Exception as error:
                failures.append(f"{mutant}: {type(error).__name__}: {str(error)[:300]}")

    assert not failures, "\n".join(failures)
    assert {kind for kind, _ in outcomes} == set(KINDS)
    assert {how for _, how in outcomes} >= {"applied", *(["drifted"] if hold is outcome else [])}


@pytest.mark.deep
@pytest.mark.parametrize("version", sampled(["0.20.2", "0.24.0", "0.33.0"], 3))
def test_renames_and_overrides(version: str) -> None:
    count = 36
    results, _ = run_release(version, count, seed=2)

    assert [f"{r.kind}, {r.what}: {r.wrong}" for r in results if r.wrong] == []
    assert len(results) >= 0.9 * count
    assert min(Counter(result.refused for result in results).values()) >= len(results) / 4
    assert len({result.kind for result in results}) >= 15

"""The states of a part, in their order."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass

import pytest
from vpatch import AddFile, Contains, Defines, Lists, Not
from vpatch.core.edits.imports import EnsureImport
from vpatch.core.engine import Engine
from vpatch.core.overlay import Catalogued, Edit, Overlay, Part, Predicate, Shape
from vpatch.core.parse import Source
from vpatch.core.verdict import Answer, EditFinding, Found, State
from vpatch.core.workspace import Workspace
from vpatch.errors import Failure, Problem

from tests.snippets import FILE, InsertAfter, ReplaceExpr, applied, make, module, names_of_fragments, overlay, verdict

__all__ = ["names_of_fragments"]

OLD, NEW = "def f():\n    return a(1)\n", "def f():\n    return b(1)\n"
EDIT = ReplaceExpr(FILE, "f", old="a(1)", new="b(1)")
HELPER = AddFile("vllm/_vpatch/h.py", "x = 1\n")
HAS, LACKS, UNKNOWN = Defines(FILE, "f"), Defines(FILE, "q"), Defines("gone.py", "f")


@pytest.mark.parametrize(
    ("source", "merged", "absent", "state", "message"),
    [
        (OLD, None, None, State.PENDING, "matches the 1.0 layout; 1 change to make"),
        (OLD, LACKS, HAS, State.PENDING, "1 change to make"),
        (OLD, UNKNOWN, UNKNOWN, State.PENDING, "1 change to make"),
        (
            OLD,
            HAS,
            None,
            State.DRIFTED,
            "it seems merged upstream (vllm/m.py defines f), yet the code still matches the 1.0 layout",
        ),
        (NEW, None, None, State.MERGED, "already there, as by o/r#1: the code equals the overlay's result"),
        (NEW, HAS, None, State.MERGED, "merged upstream (o/r#1): vllm/m.py defines f"),
        (NEW.replace("b(1)", "b(1)  # vpatch: demo"), HAS, HAS, State.APPLIED, "with its mark"),
        (NEW.replace("b(1)", "b(1)  # vpatch: other"), None, None, State.MERGED, ""),
        ("def f(): c(1)\n", HAS, None, State.MERGED, ""),
        ("def f(): c(1)\n", LACKS, HAS, State.NOT_APPLICABLE, "vllm/m.py defines f"),
        ("def f(): c(1)\n", LACKS, LACKS, State.DRIFTED, "`a(1)` is not there; nearest, line 1: `c(1)`"),
        ("def f(): c(1)\n", UNKNOWN, UNKNOWN, State.DRIFTED, "`a(1)` is not there"),
        ("def f(): a(1)\n", Not(LACKS), None, State.DRIFTED, "yet the code still matches"),
    ],
)
def test_the_state(source: str, merged: Predicate | None, absent: Predicate | None, state: State, message: str) -> None:
    found = verdict(module(source), overlay(EDIT, merged=merged, absent=absent))

    assert found.state is state
    assert message in found.because
    assert bool(found.problems) is (state is State.DRIFTED)


@pytest.mark.parametrize("data", [None, b"def f(:\n", b"'\xff'\n"])
def test_a_broken_tree_is_drifted_and_names_every_file(data: bytes | None) -> None:
    item = overlay(EDIT, merged=Defines(FILE, "f"), absent=Not(Defines(FILE, "f")))
    found = verdict({} if data is None else {FILE: data}, item)

    assert found.state is State.DRIFTED
    assert found.problems[0].where == FILE
    assert found.problems[0].scope == "f"
    assert found.problems[0].cause.startswith(("no such file", "not valid Python", "not readable as text"))


def test_a_missing_file_is_drift() -> None:
    item = overlay(EDIT, merged=Contains("gone.py", "f", "b(1)"), absent=Lists(FILE, "x", "y"))

    found = verdict(module("def f(): c\n"), item)

    doubts = [("gone.py", "no such file"), (FILE, f"{FILE} assigns x 0 times")]
    assert found.state is State.DRIFTED
    assert [(p.where, p.cause) for p in found.problems[1:]] == doubts


@pytest.mark.parametrize(
    ("when", "because"),
    [
        (HAS, "matches the 1.0 layout; 1 change to make"),
        (LACKS, "vllm/m.py: does not match the 1.0 layout: vllm/m.py does not define q"),
        (UNKNOWN, "vllm/m.py: does not match the 1.0 layout: gone.py: no such file"),
    ],
)
def test_a_shape_matches_only_if_its_condition_holds(when: Predicate, because: str) -> None:
    assert verdict(module(OLD), overlay(EDIT, when=when)).because == because


def shape(name: str, *changes: str, file: str = FILE) -> Shape:
    """Return a shape that replaces expressions: "a b" is `a` by `b`."""
    return Shape(name, [ReplaceExpr(file, "", *change.split()) for change in changes])


def replaced(*shapes: Shape) -> Catalogued:
    return Catalogued("demo", Overlay("Shapes.", (Part("part", shapes),)), "")


BOTH = replaced(shape("2.0", "y z"), shape("1.0", "a z"))
OTHERS = replaced(shape("2.0", "y z"), shape("1.0", "a b"))
FAR = replaced(shape("2.0", "p q", "r s"), shape("1.0", "y z", "v w"))
GONE = replaced(shape("2.0", "v w", file="gone.py"), shape("1.0", "v w"))


@pytest.mark.parametrize(
    ("item", "source", "state", "by", "because"),
    [
        (BOTH, "x = a\n", State.PENDING, "1.0", "matches the 1.0 layout; 1 change to make"),
        (BOTH, "x = y\nw = a\n", State.PENDING, "2.0", "matches the 2.0 layout; 1 change to make"),
        (BOTH, "x = z\n", State.MERGED, None, "already there: the code equals the overlay's result, without its"),
        (OTHERS, "x = z\nw = a\n", State.DRIFTED, None, "it seems merged upstream (one shape matches the overlay's re"),
        # The nearest shape is reported: with the fewest edits that find nothing, in files that the release has.
        (FAR, "x = y\n", State.DRIFTED, None, "vllm/m.py: `v` is not there"),
        (GONE, "x = y\n", State.DRIFTED, None, "vllm/m.py: `v` is not there"),
    ],
)
def test_shapes(item: Catalogued, source: str, state: State, by: str | None, because: str) -> None:
    (part,) = verdict(module(source), item).parts

    assert (part.state, part.shape) == (state, by)
    assert part.because.startswith(because)


@pytest.mark.parametrize(
    ("item", "hint"),
    [
        (FAR, "expected as in the 1.0 layout, one of 2 that the overlay knows"),
        # As close as the other, which may expect what is more alike.
        (
            replaced(shape("2.0", "p q"), shape("1.0", "v w")),
            "expected as in the 2.0 layout, one of 2 that the overlay",
        ),
        (replaced(shape("2.0", "p q")), ""),
    ],
)
def test_drift_names_the_layout_if_there_are_several(item: Catalogued, hint: str) -> None:
    (problem,) = verdict(module("x = y\n"), item).problems

    assert problem.hint.startswith(hint)
    assert bool(problem.hint) is bool(hint)


def test_parts_that_share_an_import_are_judged_by_their_code() -> None:
    """One part is upstream's, which imports in its own way; it stays so when the other part adds the import."""
    uses = [ReplaceExpr(FILE, name, old=f"int({name})", new=f"floor({name}, 1)") for name in "gh"]
    shared = EnsureImport(FILE, "from math import floor"), HELPER
    parts = tuple(Part(edit.scope, {"1.0": [*shared, edit]}) for edit in uses)
    item = Catalogued("demo", Overlay("Two parts.", parts), "")
    old = module("from math import *\ndef g(g):\n    return floor(g, 1)\ndef h(h):\n    return int(h)\n")

    assert [part.state for part in verdict(old, item).parts] == [State.MERGED, State.PENDING]
    assert [part.state for part in verdict(applied(old, item), item).parts] == [State.MERGED, State.APPLIED]


MINE = AddFile("vllm/mine/h.py", "x = 1\n")
OURS, THEIRS = f"# vpatch: demo\n{MINE.text}", MINE.text
DONE = NEW.replace("b(1)", "b(1)  # vpatch: demo")


@pytest.mark.parametrize(
    ("source", "new", "state"),
    [
        (OLD, None, State.PENDING),
        (OLD, OURS, State.PENDING),
        (OLD, THEIRS, State.PENDING),
        (OLD, "x = 2\n", State.DRIFTED),
        (NEW, None, State.PENDING),
        (NEW, THEIRS, State.MERGED),
        (NEW, "x = 2\n", State.DRIFTED),
        (DONE, None, State.PENDING),
        (DONE, OURS, State.APPLIED),
        (DONE, THEIRS, State.APPLIED),
        (DONE, f"{OURS}y = 1\n", State.DRIFTED),
    ],
)
def test_a_new_module_tells_who_made_the_change_as_an_edit_does(source: str, new: str | None, state: State) -> None:
    files = {**module(source), **({} if new is None else {MINE.file: new.encode()})}

    found = verdict(files, overlay(EDIT, MINE))
    assert found.state is state, found.because
    if state is State.PENDING:
        assert verdict({**files, **applied(files, overlay(EDIT, MINE))}, overlay(EDIT, MINE)).state is State.APPLIED


@pytest.mark.parametrize(
    ("edit", "new", "state"),
    [
        (MINE, None, State.CONFLICT),
        (MINE, THEIRS, State.PENDING),  # upstream has it: both rest on it
        (ReplaceExpr(MINE.file, "", "1", "2"), THEIRS, State.CONFLICT),
        (ReplaceExpr(MINE.file, "", "1", "2"), OURS, State.CONFLICT),
    ],
)
def test_two_overlays_and_one_new_module(edit: Edit, new: str | None, state: State) -> None:
    files = {**module(OLD), **({} if new is None else {MINE.file: new.encode()})}
    others = InsertAfter(FILE, "", "def f():\n    ...", "c = 1")
    items = overlay(EDIT, MINE), overlay(others, edit, name="other")

    assert {one.state for one in Engine(items).status(files.get)} == {state}


def test_an_interrupted_run_completes() -> None:
    item = overlay(EDIT, HELPER, merged=HAS)
    whole = applied(module(OLD), overlay(EDIT, HELPER))

    for half in ({**whole, FILE: OLD.encode()}, {FILE: whole[FILE]}):
        assert verdict(half, overlay(EDIT, HELPER)).state is State.PENDING
        assert applied(half, overlay(EDIT, HELPER)) == whole
    assert verdict({FILE: whole[FILE]}, item).state is State.PENDING


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (OLD + "old_hook()  # vpatch: demo\n", "the mark `# vpatch: demo` in line 3 is"),
        (NEW.replace("b(1)", "b(1)  # vpatch: demo") + "old_hook()  # vpatch: demo\n", "in line 3 is"),
        ("def f():\n    return b(2)  # vpatch: demo\n", "in line 2 is"),
    ],
)
def test_marks_of_another_version_are_drift(source: str, message: str) -> None:
    found = verdict(module(source), overlay(EDIT, merged=HAS, absent=HAS))

    assert found.state is State.DRIFTED
    assert message in found.because
    assert "undo the edit; if another version made it, apply this one, and if that is refused, " in found.because


@dataclass(frozen=True)
class Broken:
    """An edit and predicate that raises."""

    error: Exception
    file: str = FILE
    scope: str = "f"
    found: Found | None = None

    @property
    def files(self) -> tuple[str, ...]:
        return (FILE,)

    def state(self, files: Workspace, overlay: str) -> EditFinding:
        if self.found is None:
            raise self.error
        return EditFinding(self.found)

    def apply(self, files: Workspace, overlay: str) -> None:
        raise self.error

    def ask(self, files: Workspace) -> Answer:
        raise self.error


BROKEN = Broken(KeyError("x"))


@pytest.mark.parametrize(
    "item",
    [
        overlay(BROKEN),
        overlay(Broken(KeyError("x"), found=Found.BEFORE)),
        overlay(EDIT, when=BROKEN),
        overlay(EDIT, merged=BROKEN),
        overlay(ReplaceExpr(FILE, "f", "no", "b"), absent=BROKEN),
    ],
)
def test_a_failure_names_the_overlay_that_raised(item: Catalogued) -> None:
    with pytest.raises(Failure, match=r"overlay failed: demo.*Broken raised KeyError: 'x'"):
        make(module(OLD), item)

    with pytest.raises(Failure, match=r"^cannot read: there: why$"):  # itself
        make(module(OLD), overlay(Broken(Failure(Problem("cannot read", "there", "why")))))


@dataclass(frozen=True)
class Counting:
    """An edit that finds nothing and counts its calls."""

    looked: Counted
    file: str = FILE
    scope: str = "f"

    def state(self, files: Workspace, overlay: str) -> EditFinding:
        self.looked.times += 1
        return ReplaceExpr(FILE, "f", old="nowhere()", new="x").state(files, overlay)

    def apply(self, files: Workspace, overlay: str) -> None:
        raise AssertionError


@dataclass(eq=False)
class Counted:
    times: int = 0


def test_an_edit_looks_once_at_the_same_code() -> None:
    counted = Counted()
    engine = Engine([overlay(Counting(counted))])
    first = engine.status(module(OLD).get)
    asked = counted.times

    assert engine.status(module(OLD).get) == first
    assert counted.times == asked
    engine.status(module(NEW).get)
    assert counted.times > asked


def test_findings_keep_no_code_alive() -> None:
    """Syntax trees are freed with their last reference, without the cycle collector."""
    engine = Engine([overlay(EDIT)])
    engine.status(module(OLD).get)
    sources = [one._source for one in engine._cache._known.values()]
    references = [weakref.ref(source) for source in sources if isinstance(source, Source)]
    assert references
    gc.freeze()  # what other tests left
    gc.collect()
    gc.disable()
    try:
        del sources
        engine.forget()

        assert [one for one in references if one()] == []
    finally:
        gc.enable()
        gc.unfreeze()

"""A row that a memo has is tried again as soon as anything that it follows from is another; else it is as computed."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from vpatch.core import catalogue
from vpatch.core.catalogue import discover, select
from vpatch.core.overlay import Catalogued
from vpatch.core.verdict import State
from vpatch.errors import Code, Problem
from vpatch.matrix import memo as memos
from vpatch.matrix import run, worker
from vpatch.matrix.cache import VERDICTS, Cache
from vpatch.matrix.memo import RowMemo
from vpatch.matrix.rendering import table
from vpatch.matrix.verdicts import FilesRead, Matrix, as_rows
from vpatch.stamps import opened

from tests.matrix.pages import html
from tests.matrix.test_moved import MATH, MOVED
from tests.paths import ROOT

FILES = {
    "vllm/a.py": b"def f():\n    a = 1\n    return a\n",
    "vllm/lib/": b"one.so",
    "vllm/other.py": b"",
    "vllm/_vpatch/theirs.py": b"here = 1\n",
}
CALLS = {"format": 1, "releases": [], "through": {}, "known": {}, "code": {}}
ONE = """
from pathlib import Path
from vpatch import AddFile, File, HasFile, Overlay, Part, Shape
from odd.help import NUMBER
text = (Path(__file__).parent / "companions/odd.py").read_text()
edits = (AddFile("vllm/_vpatch/odd.py", text), File("vllm/a.py").function("f").insert_after("a = 1", f"a = {NUMBER}"))
merged = HasFile("vllm/lib/", "odd.so") | File("vllm/fixed.py").defines("g")
overlay = Overlay(summary="s", parts=(Part("p", shapes={"1": edits}, merged=merged),))
"""
TWO = """
from vpatch import File, Overlay, Part
edit = File("vllm/a.py").function("f").replace_statements("a = 1", "a = 3")
overlay = Overlay(summary="s", parts=(Part("p", shapes={"1": [edit]}),), opt_in=True)
"""
PACKAGE = {
    "odd/__init__.py": "",
    "odd/help.py": "NUMBER = 2\n",
    "odd/overlays/__init__.py": "",
    "odd/overlays/odd_one.py": ONE,
    "odd/overlays/odd_two.py": TWO,
    "odd/overlays/companions/odd.py": "x = 1\n",
    "odd/overlays/_calls/odd_one.json": json.dumps(CALLS),
}


@dataclass
class Made:
    """A vLLM."""

    files: dict[str, bytes]
    name: str = "made"

    def read(self, files: Collection[str]) -> FilesRead:
        return FilesRead({file: self.files[file] for file in files if file in self.files}, None, self.name)


@dataclass
class Bench:
    """A package with two overlays, a vLLM, and the jobs that were begun."""

    top: Path
    cache: Cache
    sources: list[Made] = field(default_factory=lambda: [Made(dict(FILES))])
    jobs: list[object] = field(default_factory=list)
    ids: tuple[str, ...] = ("odd-one", "odd-two")
    together: tuple[str, ...] = ("odd-one", "odd-two")

    def put(self, file: str, text: str) -> None:
        (self.top / file).parent.mkdir(parents=True, exist_ok=True)
        (self.top / file).write_text(text)

    def matrix(self, *, memo: bool = True) -> Matrix:
        """Run as a new process does."""
        worker._engine.cache_clear()
        for name in [name for name in sys.modules if name.partition(".")[0] == "odd"]:
            del sys.modules[name]
        with opened() as code:
            overlays = select(self.discover(), self.ids)
        used = RowMemo.of(overlays, self.together, code) if memo else None
        return run.run(self.sources, overlays, self.together, lambda _: None, used)

    def discover(self) -> tuple[Catalogued, ...]:
        """Import the package without a rehearsal, which takes long."""
        own = catalogue._imported(EntryPoint("odd", "odd.overlays", catalogue.GROUP), [])
        return tuple(sorted((*discover(), *own), key=lambda item: item.id))

    @property
    def memo(self) -> Path:
        (found,) = (self.cache.folder / VERDICTS).iterdir()
        return found

    def spoil(self, change: Callable[[Any], object]) -> None:
        """Change a memo, and seal it again."""
        body = json.loads(self.memo.read_bytes().partition(b"\n")[2])
        changed = change(body)
        self.seal(json.dumps(body if changed is None else changed).encode())

    def seal(self, body: bytes) -> None:
        self.memo.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


@pytest.fixture
def bench(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(tmp_path / "path", cache)
    for file, text in PACKAGE.items():
        made.put(file, text)
    # Other tests write to the folder of the repository.
    monkeypatch.setattr(sys, "path", [str(made.top), *(entry for entry in sys.path if entry not in {"", str(ROOT)})])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which Python would take for a module of the same second

    def counted(*arguments: Any) -> object:
        made.jobs.append(arguments)
        return work(*arguments)

    monkeypatch.setattr(worker, "discover", made.discover)
    work = worker.work
    monkeypatch.setattr(run, "work", counted)
    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] == "odd"]:
        del sys.modules[name]


def edited(**files: bytes | None) -> Callable[[Bench], None]:
    def change(bench: Bench) -> None:
        for path, data in files.items():
            (source,) = bench.sources
            source.files.pop(path, None)
            source.files |= {} if data is None else {path: data}

    return change


def wrote(file: str, text: str) -> Callable[[Bench], None]:
    return lambda bench: bench.put(file, text)


def spoiled(change: Callable[[Any], object]) -> Callable[[Bench], None]:
    return lambda bench: bench.spoil(change)


def touch_vpatch(about: Any) -> None:
    """As if a module had been another file then."""
    own = next(path for path in about["code"] if path.endswith("/vpatch/core/engine.py"))
    about["code"][own][0][2] -= 1


def row(about: Any) -> Any:
    (found,) = about["rows"].values()
    return found


def flip(bench: Bench) -> None:
    data = bytearray(bench.memo.read_bytes())
    data[-9] ^= 1
    bench.memo.write_bytes(data)


ANEW: Mapping[str, Callable[[Bench], object]] = {
    "a byte of a file": edited(**{"vllm/a.py": FILES["vllm/a.py"].replace(b"return a", b"return b")}),
    "a file is gone": edited(**{"vllm/a.py": None}),
    "a file that was missing": edited(**{"vllm/fixed.py": b"def g():\n    pass\n"}),
    "an empty file that was missing": edited(**{"vllm/fixed.py": b""}),
    "another form of a module": edited(**{"vllm/a/__init__.py": b""}),
    "another listing": edited(**{"vllm/lib/": b"odd.so"}),
    "no folder": edited(**{"vllm/lib/": None}),
    "a companion that is there": edited(**{"vllm/_vpatch/odd.py": b"# vpatch: odd-one\nx = 1\n"}),
    "the overlay's module": wrote("odd/overlays/odd_one.py", ONE.replace("insert_after", "insert_before")),
    "its companion": wrote("odd/overlays/companions/odd.py", "x = 2\n"),
    "its list of calls": wrote("odd/overlays/_calls/odd_one.json", json.dumps({**CALLS, "releases": ["0.20.2"]})),
    "another list of calls": wrote("odd/overlays/_calls/odd_two.json", json.dumps(CALLS)),
    "a file beside it that nothing reads": wrote("odd/overlays/odd_one.vpatch", "+a\n"),
    "a module that it imports": wrote("odd/help.py", "NUMBER = 5\n"),
    "a new package": wrote("new-1.dist-info/entry_points.txt", ""),
    "another interpreter": lambda bench: setattr(sys, "version", f"{sys.version} (another)"),
    "a variable of vLLM's": lambda bench: os.environ.update(VLLM_NEW="1"),
    "another search path": lambda bench: sys.path.append(str(bench.top / "odd")),
    "fewer overlays": lambda bench: vars(bench).update(ids=("odd-one",), together=("odd-one",)),
    "fewer together": lambda bench: vars(bench).update(together=("odd-one",)),
}
SPOILED: Mapping[str, Callable[[Bench], object]] = {
    "vpatch": spoiled(touch_vpatch),
    "no memo": lambda bench: bench.memo.unlink(),
    "a flipped bit": flip,
    "an empty memo": lambda bench: bench.memo.write_bytes(b""),
    "nested JSON": lambda bench: bench.seal(b"[" * 100_000),
    "another schema": spoiled(lambda about: about.update(schema=2)),
    "no code": spoiled(lambda about: about.pop("code")),
    "code of another form": spoiled(lambda about: about.update(code=[1])),
    "rows of another form": spoiled(lambda about: about.update(rows=dict.fromkeys(about["rows"], 3))),
    "a number for a text": spoiled(lambda about: row(about)["cells"][0]["verdict"]["parts"][0].update(because=1)),
    "another state": spoiled(lambda about: row(about)["cells"][0]["verdict"]["parts"][0].update(state="fine")),
    "a field too many": spoiled(lambda about: row(about)["cells"][0]["verdict"]["parts"][0].update(more=1)),
    "a cell too few": spoiled(lambda about: row(about)["cells"].pop()),
    "sought files of another form": spoiled(lambda about: row(about).update(sought=[])),
    "another sought file": spoiled(lambda about: row(about).update(sought={"vllm/sought.py": "0" * 64})),
}
AS_BEFORE: Mapping[str, Callable[[Bench], object]] = {
    "nothing": lambda bench: None,
    "a file that nothing asks for": edited(**{"vllm/other.py": b"x = 1\n"}),
    "another name": lambda bench: setattr(bench.sources[0], "name", "other"),
    "bytecode": wrote("odd/overlays/__pycache__/odd_one.cpython-399.pyc", ""),
}


@pytest.mark.parametrize("what", [*ANEW, *AS_BEFORE])
def test_a_row_is_tried_anew(what: str, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its result is that of a run without a memo."""
    monkeypatch.setattr(sys, "version", sys.version)
    monkeypatch.setenv("VLLM_NEW", "")
    first = bench.matrix()
    assert {cell.verdict.state for cell in first.rows[0].cells} == {State.CONFLICT}

    {**ANEW, **AS_BEFORE}[what](bench)
    second = bench.matrix()

    assert len(bench.jobs) == 1 + (what in ANEW)
    assert what in ANEW or bench.matrix(memo=False) == second


@pytest.mark.deep
def test_a_memo_that_is_damaged_or_foreign_is_not_used(bench: Bench) -> None:
    """The next run replaces it."""
    first = bench.matrix()
    for number, (what, spoil) in enumerate(SPOILED.items(), 2):
        spoil(bench)
        assert (bench.matrix(), len(bench.jobs)) == (first, number), what
    (memo := bench.memo).unlink()
    memo.mkdir()
    assert (bench.matrix(), bench.matrix(), len(bench.jobs)) == (first, first, number + 2)


def test_a_remembered_row_looks_as_a_computed_one(bench: Bench) -> None:
    first, second = bench.matrix(), bench.matrix()

    assert len(bench.jobs) == 1
    assert json.dumps(as_rows(second)) == json.dumps(as_rows(first))
    assert (table(second), html(second)) == (table(first), html(first))


@pytest.mark.parametrize("code", [Code.OVERLAY_FAILED, Code.NOT_TOGETHER])
def test_what_may_pass_is_not_kept(code: Code, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlay may have failed for lack of memory."""
    problem = Problem("failed", "odd-one", "MemoryError", code=code)
    monkeypatch.setattr(worker, "try_together", lambda *_: worker.Together({}, (problem,)))

    for _ in range(2):
        assert bench.matrix().rows[0].problems == (problem,)
    assert len(bench.jobs) == 2


def test_code_that_changes_during_a_run_is_not_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker process found another module than the process that began it."""

    def changing(*arguments: Any) -> object:
        bench.put("odd/help.py", "NUMBER = 4444\n")
        return worker.work(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(run, "work", changing)
        bench.matrix()

    assert not (bench.cache.folder / VERDICTS).exists()


@pytest.mark.deep
def test_memos_stay_few_and_small(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were used last stay, and of a memo the rows."""
    monkeypatch.setattr(memos, "ROWS", 2)
    monkeypatch.setattr(memos, "MEMOS", 2)
    for text in (b"", b"x = 1\n", b"x = 2\n", b"", b"x = 3\n"):
        edited(**{"vllm/fixed.py": text})(bench)
        bench.matrix()
    assert len(bench.jobs) == 4 + 1  # the first one was dropped
    assert len(json.loads(bench.memo.read_bytes().partition(b"\n")[2])["rows"]) == 2
    for together in ((), ("odd-one",), ("odd-two",)):
        bench.together = together
        bench.matrix()
    assert len([*(bench.cache.folder / VERDICTS).iterdir()]) == 2
    assert bench.cache.clear().files == 2


def test_no_cache_is_no_failure(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in bench.cache.folder.iterdir():
        file.rmdir()
    bench.cache.folder.rmdir()
    bench.cache.folder.write_bytes(b"")  # which cannot be written to
    assert bench.matrix() == bench.matrix(memo=False)

    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    assert bench.matrix() == bench.matrix(memo=False)


NAMES_IT = f"""
from vpatch import File, Overlay, Part
edit = File("{MOVED}").function("round_up").insert_after("...", "x = 1")
overlay = Overlay(summary="s", parts=(Part("p", shapes={{"1": [edit]}}),))
"""


@pytest.mark.deep
@pytest.mark.parametrize("another", [(), ("odd-three",)], ids=["nothing", "another overlay"])
def test_what_was_sought_is_compared(another: tuple[str, ...], tree: Path, bench: Bench) -> None:
    """A function may be in a module that the overlay does not name, whether others do or not, and that may be missing.

    Neither a memo nor a row of the same run with equal files otherwise answers for such a row.
    """
    bench.put("odd/overlays/odd_three.py", NAMES_IT)
    text = (tree / MATH).read_text()
    files = {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*.py")}
    files[MATH] = b"from vllm.utils.moved_utils import *\nfrom vllm.utils.moved_utils import round_up\n"
    other = text.replace("def round_up(x: int, y: int)", "def round_up(x: int, by: int)")
    bench.ids, bench.together = ("turboquant-workspace", *another), ()
    rows = [
        Made(files, "missing"),
        Made({**files, MOVED: other.encode()}, "other"),
        Made({**files, MOVED: text.encode()}),
    ]
    states = [State.DRIFTED, State.DRIFTED, State.PENDING]

    def found(*sources: Made) -> list[State]:
        bench.sources = list(sources)
        return [row.cells[-1].verdict.state for row in bench.matrix().rows]

    for order in (1, -1):
        assert found(*rows[::order]) == states[::order]
    for source, state in zip(rows, states, strict=True):
        for _ in range(2):
            jobs = len(bench.jobs)
            assert found(source) == [state]
        assert len(bench.jobs) == jobs

"""Discovery: what an entry point may name, and that each of our overlays has a table of cases."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vpatch.core.catalogue import GROUP, discover, select
from vpatch.testing import Case, State

from tests.failures import problems_of
from tests.releases import RELEASES, fact, said

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vpatch.core.overlay import Catalogued

    Install = Callable[[str, str, Mapping[str, str]], None]

OVERLAYS = Path(__file__).parents[1] / "overlays"
OURS = tuple(item for item in discover() if item.origin.startswith("vpatch "))
FINE = '''"""Why."""
from vpatch import AddFile, Overlay, Part, Shape
FILE = AddFile("vllm/_vpatch/x.py", "")
overlay = Overlay(summary="What.", parts=(Part("part", (Shape("shape", (FILE,)),)),), opt_in=OPT)
'''
UNMARKED = ("Broken", "bro__ken", "_broken", "broken_")  # names that no mark can have
INCOMPLETE = "ValueError: it needs a part, each part a shape, and each shape an edit"


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution with these modules and entry points."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def install(name: str, points: str, sources: Mapping[str, str]) -> None:
        info = tmp_path / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}\n")
        for file, source in sources.items():
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).write_text(source)

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield install
    for name in set(sys.modules) - before:
        del sys.modules[name]


def refusal() -> list[str]:
    return [str(problem) for problem in problems_of(discover)]


def test_a_package_and_a_module(distribution: Install, tmp_path: Path) -> None:
    """Subpackages and modules with a leading underscore are not overlays."""
    fine = FINE.replace("OPT", "False")
    files = {"__init__.py": "", "first_fix.py": f"import package._shared\n{fine}", "sub.py": fine}
    files |= {"_shared.py": "X = 1", "helpers/__init__.py": "raise ZeroDivisionError"}
    (tmp_path / "package").mkdir()
    distribution("one", "a = package", {f"package/{name}": text for name, text in files.items()})
    distribution("two", "b = second", {"second.py": FINE.replace("OPT", "True")})

    found = {item.id: item for item in discover()}

    assert list(found) == sorted(found)
    assert {"first-fix", "sub", "second"} < found.keys()
    assert (found["first-fix"].origin, found["second"].origin) == ("one 1", "two 1")
    assert found["second"].why == "Why."
    chosen = [item.id for item in select(tuple(found.values()))]
    assert "first-fix" in chosen
    assert "second" not in chosen
    twice = select(tuple(found.values()), ("second", "first-fix", "second"))
    assert [item.id for item in twice] == ["first-fix", "second"]


@pytest.mark.parametrize(
    ("name", "source", "cause"),
    [
        ("broken", "", "AttributeError: module 'broken' has no attribute 'overlay'"),
        ("broken", "overlay = 1", "TypeError: `overlay` is int, not vpatch.Overlay"),
        ("broken", "from vpatch import Overlay\noverlay = Overlay('', ())", INCOMPLETE),
        ("broken", "from vpatch import *\noverlay = Overlay('', (Part('', (Shape('', ()),)),))", INCOMPLETE),
        *((name, FINE, f"ValueError: its id would be '{name.replace('_', '-')}': ") for name in UNMARKED),
    ],
)
def test_a_module_without_an_overlay(distribution: Install, name: str, source: str, cause: str) -> None:
    distribution("broken", f"b = {name}", {f"{name}.py": source.replace("OPT", "False")})

    (message,) = refusal()
    assert message.startswith(f"cannot load overlay: {name}: {cause}")


def test_all_failures_at_once(distribution: Install) -> None:
    fine = FINE.replace("OPT", "False")
    first = {"raising.py": "1 / 0", "twin_a/__init__.py": "", "twin_a/x.py": fine}
    distribution("one", "a = not_there\nb = raising\nc = twin_a", first)
    second = {"twin_b/__init__.py": "", "twin_b/x.py": fine, "twin_b/y.py": "import sys\nsys.exit(0)"}
    distribution("two", "d = twin_b", second)

    assert sorted(refusal()) == [
        "cannot load overlay: twin_b.y: SystemExit: 0 (line 2)",
        "cannot load overlays: not_there: ModuleNotFoundError: No module named 'not_there'",
        "cannot load overlays: raising: ZeroDivisionError: division by zero (line 1)",
        "overlay id taken: x: one 1 and two 1 both ship it",
    ]


def test_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vpatch.core.catalogue.entry_points", lambda group: ())

    assert refusal() == [f"no overlays: {GROUP}: no installed distribution has this entry point"]


@pytest.mark.parametrize("item", OURS, ids=lambda item: item.id)
def test_our_overlays_have_their_cases_and_explanations(item: Catalogued) -> None:
    """Each table of cases has a pending and a drifted case and, if a release is merged, a merged one."""
    file = OVERLAYS / f"test_{item.id.replace('-', '_')}.py"
    assert file.is_file(), f"{item.id} has no test"
    spec = importlib.util.spec_from_file_location(f"cases_of_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    cases: tuple[Case, ...] = module.CASES
    wanted = {State.PENDING, State.DRIFTED}
    wanted |= {State(fact(item.id, release)) for release in RELEASES} & {State.MERGED, State.NOT_APPLICABLE}
    assert {case.before for case in cases} >= wanted, f"{file.name}: CASES lack some of {sorted(wanted)}"
    # A drifted case proves nothing on a release that is drifted without it.
    assert all(case.replace or case.says for case in cases if case.before is State.DRIFTED)

    assert item.overlay.summary.endswith(".")
    assert item.why
    for release in RELEASES:
        (message,) = said(item.overlay.releases, release)
        state, _, because = message.partition(": ")
        assert State(state)
        assert because
    assert all("#" in link and link.count("/") == 1 for link in item.overlay.upstream)

"""Overlays that another version of their package applied: `apply` upgrades them at once, or changes nothing.

Two versions of a package are simulated. They differ in what they insert, in their companions and in their files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import vpatch
from vpatch import AddFile, Overlay, Part, Shape, api
from vpatch.core.overlay import Catalogued, Edit
from vpatch.core.verdict import State
from vpatch.tree.apply import apply, revert
from vpatch.tree.locate import Tree
from vpatch.tree.write_plan import SitePackages

from tests.conftest import Program, contents_of, unchanged, untouched
from tests.snippets import InsertAfter, ReplaceExpr
from tests.tree.conftest import git, row

ONE, TWO, THREE = (f"vllm/{name}.py" for name in ("one", "two", "three"))
COMPANION, GONE = "vllm/_vpatch/demo.py", "vllm/_vpatch/gone.py"
MINE, LEFT = "vllm/mine/demo.py", "vllm/left/gone.py"
INFO = "vllm-1.dist-info"
FILES = {
    "vllm/__init__.py": b"",
    "vllm/engine/__init__.py": b"",
    **{file: f"x = 1\nw = {n}\n".encode() for n, file in enumerate((ONE, TWO, THREE))},
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: vllm\nVersion: 1\n",
}


def made(name: str, *edits: Edit) -> Catalogued:
    return Catalogued(name, Overlay("What.", (Part("part", (Shape("shape", edits),)),)), "Why.")


def inserted(file: str, code: str) -> Edit:
    return InsertAfter(file, "", anchor="x = 1", new=code)


OTHER = made("other", ReplaceExpr(ONE, "", old="0", new="10"))
NEW = made(
    "demo",
    inserted(ONE, "y = 3"),
    inserted(THREE, "z = 3"),
    AddFile(COMPANION, "new = 1\n"),
    AddFile(MINE, "new = 1\n"),
)
OLD = {
    "other code": made("demo", inserted(ONE, "y = 2"), inserted(THREE, "z = 3"), AddFile(COMPANION, "new = 1\n")),
    "another companion": made("demo", *NEW.overlay.parts[0].shapes[0].edits[:2], AddFile(COMPANION, "old = 1\n")),
    "another file": made("demo", *NEW.overlay.parts[0].shapes[0].edits, inserted(TWO, "v = 3")),
    "one companion more": made("demo", *NEW.overlay.parts[0].shapes[0].edits, AddFile(GONE, "old = 1\n")),
    "another new module": made("demo", *NEW.overlay.parts[0].shapes[0].edits[:3], AddFile(MINE, "old = 1\n")),
    "one new module more": made("demo", *NEW.overlay.parts[0].shapes[0].edits, AddFile(LEFT, "old = 1\n")),
    "everything": made(
        "demo", inserted(ONE, "y = 2"), inserted(TWO, "v = 2"), AddFile(GONE, "old = 1\n"), AddFile(LEFT, "old = 1\n")
    ),
}
VERSIONS = pytest.mark.parametrize("old", OLD)


def make(root: Path) -> SitePackages:
    for name, content in {**FILES, f"{INFO}/RECORD": b""}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    rows = [*(row(*item) for item in FILES.items()), f"{INFO}/RECORD,,", ""]
    (root / INFO / "RECORD").write_text("\n".join(rows))
    return SitePackages(Tree(root, INFO, "1"))


@pytest.fixture
def store(public: Path) -> SitePackages:
    return make(public / "site-packages")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make these the installed overlays."""
    return lambda *items: monkeypatch.setattr(api, "discover", lambda: tuple(sorted(items, key=lambda one: one.id)))


def fresh(folder: Path, *items: Catalogued) -> dict[str, bytes | None]:
    """Return what a tree looks like to which these were applied at once, as a tree in memory."""
    store = make(folder / "fresh")
    apply(store, items)
    return dict(contents_of(store.tree.root))


@VERSIONS
def test_apply_upgrades(store: SitePackages, public: Path, old: str) -> None:
    """What is applied besides is computed anew, too, without being asked for."""
    before = contents_of(store.tree.root)
    apply(store, [OLD[old], OTHER])

    changeset, writes = apply(store, [NEW], installed=[NEW, OTHER])

    assert {verdict.state for verdict in changeset.after} == {State.APPLIED}
    assert writes.upgraded == ("demo",)
    assert contents_of(store.tree.root) == fresh(public, NEW, OTHER)
    with untouched(store.tree.root):
        assert not apply(store, [NEW, OTHER])[1].work
    revert(store, [NEW, OTHER], None)
    assert contents_of(store.tree.root) == before


def test_what_is_not_asked_for_is_not_upgraded(store: SitePackages) -> None:
    apply(store, [OLD["everything"]])
    before = contents_of(store.tree.root)

    _, writes = apply(store, [OTHER], installed=[NEW, OTHER])

    changed = {file for file, content in contents_of(store.tree.root).items() if content != before.get(file)}
    assert {file for file in changed if file.startswith("vllm/")} == {ONE}
    assert writes.upgraded == ()


@pytest.mark.parametrize(
    ("old", "file"),
    [
        ("other code", ONE),
        ("other code", COMPANION),
        ("another companion", THREE),
        ("another file", ONE),
        ("another new module", MINE),
        ("one new module more", LEFT),
    ],
)
def test_an_edit_of_the_user_stays(store: SitePackages, old: str, file: str) -> None:
    """Then there is no upgrade, since it could lose the edit."""
    apply(store, [OLD[old]])
    path = store.tree.root / file
    path.write_bytes(path.read_bytes() + b"mine = 1\n")
    edited = path.read_bytes()

    changeset, writes = apply(store, [NEW])

    assert path.read_bytes() == edited
    assert writes.upgraded == ()
    assert not (changeset.problems and writes.changed)


def test_an_overlay_of_an_unknown_package_is_not_lost(store: SitePackages) -> None:
    apply(store, [OLD["other code"], OTHER])

    with unchanged(store.tree.root):
        changeset, _ = apply(store, [NEW])

    assert changeset.problems


def test_all_or_nothing(store: SitePackages) -> None:
    """The new version does not fit this vLLM."""
    apply(store, [OLD["other code"], OTHER])
    misfit = made("demo", inserted(ONE, "y = 3"), InsertAfter(TWO, "", anchor="nowhere()", new="y = 3"))

    with unchanged(store.tree.root):
        changeset, _ = apply(store, [misfit, OTHER])

    assert changeset.problems


def test_others_that_do_not_fit_are_named(store: SitePackages, install: Callable[..., None], vpatch: Program) -> None:
    """What another version applied is not among them."""
    misfit = made("misfit", inserted(TWO, "y = 3"), InsertAfter(TWO, "", anchor="nowhere()", new="y = 3"))
    root = store.tree.root
    install(OLD["everything"])
    vpatch("apply", root)
    install(NEW, OTHER, misfit)
    others = f"To apply the others: `vpatch apply --without misfit {root}`."

    assert f"misfit does not fit this vLLM. {others}" in vpatch("status", root).err
    with unchanged(root):
        ran = vpatch("apply", root)
    assert ran.err.count("drifted: ") == 1
    assert vpatch("apply", "--json", root).json["upgraded"] == []
    assert f"Nothing was written: misfit does not fit this vLLM. {others}" in ran.err
    assert set(api.apply(root, ["demo", "other"]).affected) == {"demo", "other"}


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ([InsertAfter(TWO, "", anchor="nowhere()", new="y = 3")], f"drifted: {TWO}: `nowhere()` is not there"),
        ([inserted(ONE, "y = unbound")], f"drifted: {ONE}: `y = unbound` reads `unbound`, which nothing binds"),
    ],
)
def test_what_is_wrong_with_the_new_version(
    store: SitePackages, install: Callable[..., None], vpatch: Program, edits: list[Edit], says: str
) -> None:
    root = store.tree.root
    install(OLD["other code"])
    vpatch("apply", root)
    install(made("demo", *edits), OTHER)

    with unchanged(root):
        for command in ("status", "apply", "apply -n", "diff"):
            ran = vpatch(*command.split(), root)
            assert (ran.code, ran.err.count("drifted: "), says in ran.err) == (1, 1, True), ran.err
            assert (
                f"demo does not fit this vLLM. To apply the others: `vpatch apply --overlay other {root}`." in ran.err
            )
    assert ran.out == ""


@VERSIONS
def test_the_verbs_tell_of_it(store: SitePackages, install: Callable[..., None], old: str) -> None:
    tree = store.tree
    install(OLD[old], OTHER)
    vpatch.apply(tree)
    install(NEW, OTHER)

    found = vpatch.status(tree)
    ahead = vpatch.diff(tree)
    assert found.upgradable == ahead.upgradable == ("demo",)
    assert [problem.what for problem in found.problems] == ["outdated"]
    with pytest.raises(vpatch.Failure) as failed:
        vpatch.verify(tree)
    assert [problem.what for problem in failed.value.problems][-1:] == ["outdated"]
    assert "if you edited it" not in str(failed.value)

    done = vpatch.apply(tree)
    assert done.upgraded == done.affected == ("demo",)
    for file, (_, now) in ahead.files.items():
        assert (tree.read(file)) == now
    assert ("+++ /dev/null" in ahead.lines) is (not {GONE, LEFT}.isdisjoint(ahead.files))
    assert {*ahead.files} == {*done.changed} - {f"{INFO}/RECORD"}
    assert vpatch.status(tree).upgradable == ()
    vpatch.verify(tree)


def test_the_screens(store: SitePackages, install: Callable[..., None], vpatch: Program) -> None:
    root, file = store.tree.root, "1 overlay is outdated: `vpatch apply"
    install(OLD["everything"])
    vpatch("apply", root)
    install(NEW, OTHER)

    status, ahead = vpatch("status", root), vpatch("apply", "--dry-run", root)
    assert (status.code, vpatch("apply", "--check", root).code, ahead.code) == (1, 1, 0)
    assert f"{file} {root}` upgrades it." in status.err
    assert "outdated: demo: another version of it is applied; `vpatch apply` upgrades it" in status.err
    assert "To apply the others" not in status.err
    assert "Would apply 1 overlay and upgrade 1 overlay: " in ahead.err
    assert vpatch("status", "--json", root).json["upgradable"] == ["demo"]

    done = vpatch("apply", root)
    assert (done.code, "Applied 1 overlay and upgraded 1 overlay: " in done.err) == (0, True)
    assert "Nothing to do: 2 overlays are applied." in vpatch("apply", root).err


def test_a_module_that_is_gone_comes_back(store: SitePackages, install: Callable[..., None], vpatch: Program) -> None:
    root = store.tree.root
    install(OLD["everything"])
    vpatch("apply", root)
    whole = contents_of(root)
    (root / TWO).unlink()

    status, verify = vpatch("status", root), vpatch("verify", root)
    assert (status.code, verify.code) == (1, 1)
    for ran in (status, verify):
        assert f"missing file: {TWO}: vpatch had changed it; `vpatch apply` writes it again\n" in ran.err
        assert "another version" not in ran.err
    assert f"1 file is missing: `vpatch apply {root}` writes it again." in status.err
    assert "reinstall" not in vpatch("doctor", root).out
    would = vpatch("apply", "--check", root)
    assert (would.code, "Would repair 1 file. Nothing is written yet: " in would.err) == (1, True)
    done = vpatch("apply", root)
    assert (done.code, "Repaired 1 file: " in done.err) == (0, True)
    assert contents_of(root) == whole


def test_what_stays_is_upgraded_before_another_is_reverted(store: SitePackages) -> None:
    apply(store, [OLD["everything"], OTHER])

    with pytest.raises(vpatch.Failure) as failed:
        revert(store, [NEW, OTHER], [OTHER])
    first = f"run `vpatch apply --overlay demo {store.tree.root}` first, which upgrades it"
    hint = f"another version of it is applied: {first}"
    assert [(one.what, one.hint) for one in failed.value.problems] == [("cannot keep", hint)]
    apply(store, [NEW], installed=[NEW, OTHER])
    assert revert(store, [NEW, OTHER], [OTHER]).changed


def test_a_checkout(public: Path) -> None:
    pytest.importorskip("git")
    from vpatch.tree.checkout import Checkout

    root = public / "clone"
    for name, content in FILES.items():
        if name.startswith("vllm/"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "vLLM")
    checkout = Checkout.at(Tree(root, None, "1"))
    apply(checkout, [OLD["everything"], OTHER])

    _, writes = apply(checkout, [NEW, OTHER])

    assert writes.upgraded == ("demo",)
    assert {path.name for path in (root / "vllm/_vpatch").iterdir()} == {"demo.py"}
    assert (root / MINE).is_file()
    assert not (root / LEFT).parent.exists()
    assert (root / TWO).read_bytes() == FILES[TWO]
    revert(checkout, [NEW, OTHER], None)
    assert git(root, "status", "--porcelain") == ""
    assert not (root / MINE).parent.exists()

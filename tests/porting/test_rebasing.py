"""Drafts of a patch file for another vLLM: each way to one, and what stops it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from vpatch.core.engine import Engine
from vpatch.core.marks import without_marks
from vpatch.core.overlay import Catalogued
from vpatch.core.patch_file import PatchFile, overlay_of
from vpatch.core.verdict import State
from vpatch.porting.bases import PatchBase
from vpatch.porting.proof import ModuleVersions, patch_file
from vpatch.porting.rebasing import Draft, Stopped, draft

FILE = "vllm/p/m.py"
BASE = "def f(a):\n    a = one(a)\n    b = two(a)\n\n    # Three of them.\n    c = three(b)\n    return c\n"
"""It reads names that nothing binds: what the check says of them was accepted with the patch."""
CHECKED = BASE.replace("b = two(a)", "b = two(a)\n    check(b)")
AFTER = BASE.replace("two(a)", "two(a, 2)")
MERGED = "a three-way merge of the lines"
MOVED = "the hunks in the definitions' new place"
BESIDE = "the hunks with one neighbor"


def vllm(version: str, files: Mapping[str, str]) -> PatchBase:
    """Return a vLLM that has these modules, and a RECORD of them."""
    rows = "".join(f"{path},,\n" for path in files)
    every = {**files, f"vllm-{version}.dist-info/RECORD": rows}
    return PatchBase(version, version, lambda path: every[path].encode() if path in every else None)


def patched(after: str, before: str = BASE, path: str = FILE) -> PatchFile:
    change = ModuleVersions(path, before, after)
    patch, _ = patch_file("fix", {"Subject": "A fix", "Base": "1"}, (change,), vllm("1", {path: before}).read)
    return patch


def drafted(patch: PatchFile, target: PatchBase, base: PatchBase | None) -> tuple[Draft | None, Sequence[Stopped]]:
    """Make a draft; one that is made is applied by itself, and is no other program than it was proven to be."""
    found = draft("fix", patch, base, target)
    made, stopped = found if found.patch else None, found.stopped
    if made and made.patch:
        assert made.patch.head["Base"] == target.version
        engine = Engine([Catalogued("fix", overlay_of(made.patch), "")])
        assert engine.status(target.read)[0].state is State.PENDING
    return made, stopped


def result(patch: PatchFile | None, target: PatchBase, path: str) -> str:
    assert patch is not None
    made = Engine([Catalogued("fix", overlay_of(patch), "")]).plan(target.read)
    return without_marks(made.files[path]).decode()


# The module after the patch, the modules of the target, the way, and where the change is then.
DRAFTS: Mapping[str, tuple[str, Mapping[str, str], str, str, str]] = {
    "the neighbor below is another": (
        CHECKED,
        {FILE: BASE.replace("    return c", "    return c + 1").replace("c = three(b)", "c = tri(b)")},
        MERGED,
        FILE,
        "    b = two(a)\n    check(b)\n\n    # Three of them.\n    c = tri(b)\n",
    ),
    "the module was moved": (
        AFTER,
        {"vllm/x/m.py": BASE, "vllm/y/m.py": "def g():\n    return 1\n"},
        MOVED,
        "vllm/x/m.py",
        "two(a, 2)",
    ),
    "the module became a package": (AFTER, {"vllm/p/m/core.py": BASE}, MOVED, "vllm/p/m/core.py", "two(a, 2)"),
    "the package became a module": (AFTER, {"vllm/p.py": BASE}, MOVED, "vllm/p.py", "two(a, 2)"),
    "the function went to a module of its package": (
        AFTER,
        {FILE: "from vllm.p.m.core import f\n", "vllm/p/m/core.py": BASE},
        MOVED,
        "vllm/p/m/core.py",
        "two(a, 2)",
    ),
    "the module imports the function from another package": (
        AFTER,
        {
            FILE: "from vllm.q.launch import entry\nfrom vllm.q import f\n",
            "vllm/q/__init__.py": "from .launch.entry import f\n",
            "vllm/q/launch/entry.py": BASE,
            "vllm/p/known.py": BASE,
        },
        MOVED,
        "vllm/q/launch/entry.py",
        "two(a, 2)",
    ),
    "upstream inserted a block in the same place": (
        CHECKED,
        {FILE: BASE.replace("b = two(a)", "b = two(a)\n    if b:\n        four(b)")},
        BESIDE,
        FILE,
        "    b = two(a)\n    check(b)\n    if b:\n",
    ),
    "upstream inserted a block above, and changed what is below": (
        CHECKED.replace("    check(b)", "").replace("    c = three", "    check(b)\n    c = three"),
        {
            FILE: BASE.replace("b = two(a)", "b = two(a, b)").replace(
                "    c = three", "    if b:\n        four(b)\n    c = three"
            )
        },
        BESIDE,
        FILE,
        "        four(b)\n    check(b)\n    c = three(b)\n",
    ),
    "a new module beside it has the function": (
        AFTER,
        {"vllm/p/new.py": BASE, "vllm/p/old.py": "def h():\n    return 1\n"},
        MOVED,
        "vllm/p/new.py",
        "two(a, 2)",
    ),
    "a new module beside it, and one that was there": (
        AFTER,
        {"vllm/p/new.py": BASE, "vllm/p/known.py": BASE},
        MOVED,
        "vllm/p/new.py",
        "two(a, 2)",
    ),
    "a module beside it that was there": (AFTER, {"vllm/p/known.py": BASE}, MOVED, "vllm/p/known.py", "two(a, 2)"),
    "moved, and the code around is another": (
        CHECKED,
        {"vllm/x/m.py": BASE.replace("c = three(b)", "c = tri(b)")},
        MERGED,
        "vllm/x/m.py",
        "    check(b)\n\n    # Three of them.\n    c = tri(b)",
    ),
}


@pytest.mark.parametrize("case", DRAFTS)
def test_a_draft(case: str) -> None:
    after, files, how, path, code = DRAFTS[case]
    base, target = vllm("1", {FILE: BASE, "vllm/p/known.py": "def known(): ...\n"}), vllm("2", files)

    made, _ = drafted(patched(after), target, base)

    assert made is not None
    assert made.how == how
    assert code in result(made.patch, target, path)


# The module after the patch, the modules of the target, and why there is no draft.
NONE: Mapping[str, tuple[str, Mapping[str, str], str]] = {
    "both sides changed a line": (
        AFTER,
        {FILE: BASE.replace("two(a)", "two(a, b)")},
        f"{MERGED}: vllm/p/m.py: both sides changed line 3 of vLLM 1, line 3 of vLLM 2",
    ),
    "the module is gone": (AFTER, {"vllm/n.py": BASE}, f"{MERGED}: vllm/p/m.py is not there"),
    "two modules may be the new place": (
        AFTER,
        {"vllm/x/m.py": BASE, "vllm/y/m.py": BASE},
        f"{MERGED}: vllm/p/m.py is not there",
    ),
    "two modules beside it may be the new place": (
        AFTER,
        {"vllm/p/x.py": BASE, "vllm/p/y.py": BASE},
        f"{MERGED}: vllm/p/m.py is not there",
    ),
    "the lines are there, in another form": (
        BASE.replace("    b = two(a)\n", "    b = two(a)\n    if b:\n        log(b)\n"),
        {FILE: BASE.replace("    b = two(a)\n", "    b = two(a)\n    if b:\n        log(b)\n    b += 1\n")},
        f"{MERGED}: ",
    ),
}


@pytest.mark.parametrize("case", NONE)
def test_no_draft(case: str) -> None:
    after, files, why = NONE[case]

    made, stopped = drafted(patched(after), vllm("2", files), vllm("1", {FILE: BASE}))

    assert made is None
    assert any(str(one).startswith(why) for one in stopped)


def test_without_the_base() -> None:
    """A replacement may stand beside one neighbor; lines cannot be merged."""
    target = vllm("2", {FILE: BASE.replace("c = three(b)", "c = tri(b)")})

    made, _ = drafted(patched(AFTER), target, None)
    none, stopped = drafted(patched(CHECKED), target, None)

    assert made is not None
    assert made.how == BESIDE
    assert "two(a, 2)" in result(made.patch, target, FILE)
    assert made.notes[0] == "vLLM 1 cannot be read: whether this is the same place as there, was not looked at"
    assert none is None
    assert str(stopped[0]) == f"{MERGED}: vLLM 1, which the patch was made for, cannot be read"


BODY = "    b = a.two(1)\n    c = b.three()\n    d = c.four()\n    return d\n"
F = f"def f(a):\n{BODY}"
IF = "def f(a):\n    if a.x:\n" + BODY.replace("    ", "        ") + "    return a\n"
TWICE = (
    "def f(a):\n    a.log()\n    x = a.g()\n    a.use(x)\n    a.prepare()\n    x = a.g()\n    a.use(x)\n    return x\n"
)
"""It has a statement in two places with the same neighbor below."""


def checked(text: str) -> str:
    return text.replace("    c = b.three", "    b.check()\n    c = b.three", 1)


# The module before and after the patch, the module of the target, and why there is no draft.
ELSEWHERE: Mapping[str, tuple[str, str, str, str]] = {
    "the other of two places": (
        TWICE,
        TWICE.replace("a.g()", "a.g(2)", 1),
        TWICE.replace("    x = a.g()\n    a.use(x)\n", "", 1),
        f"{MERGED}: vllm/p/m.py: both sides changed line 3 of vLLM 1, line 3 of vLLM 2",
    ),
    "a line that upstream has where another line is above it": (
        F,
        F.replace("    c = b.three", "    return b\n    c = b.three"),
        F.replace("two(1)\n", "two(2)\n    return b\n"),
        f"{MERGED}: vllm/p/m.py: both sides changed line 2 of vLLM 1, line 2 of vLLM 2",
    ),
    "a line that upstream moved there": (
        f"{F}\n\ndef g(b):\n    return b\n",
        F.replace("    c = b.three", "    return b\n    c = b.three") + "\n\ndef g(b):\n    return b\n",
        F.replace("two(1)\n", "two(2)\n    return b\n") + "\n\ndef g(b):\n    return 1\n",
        f"{BESIDE}: already there: the code equals the overlay's result, without its marks",
    ),
    "a function that the patch leaves alone": (
        f"{F}\n\ndef g(a):\n{BODY}",
        checked(f"{F}\n\ndef g(a):\n{BODY}"),
        f"def g(a):\n{BODY}\n\n{F.replace('b.three()', 'b.tri()').replace('two', 'too')}",
        f"{MERGED}: vllm/p/m.py: it would change `g`, which the patch does not change",
    ),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_no_draft_elsewhere(case: str) -> None:
    before, after, now, why = ELSEWHERE[case]

    made, stopped = drafted(patched(after, before), vllm("2", {FILE: now}), vllm("1", {FILE: before}))

    assert made is None
    assert why in map(str, stopped)


def test_what_is_left_of_a_patch_is_not_taken_where_all_of_it_is_needed() -> None:
    before = f"{F}\n\ndef g(a):\n{BODY}".replace("    c =", "\n    # Three of them.\n    c =")
    patch, base = patched(before.replace("a.two(1)", "a.two(2)"), before), vllm("1", {FILE: before})
    now = before.replace("a.two(1)", "a.two(2)", 1).replace("b.three()", "b.tri()", 1)

    made, _ = drafted(patch, vllm("2", {FILE: now}), base)

    assert made is not None
    assert made.patch is not None
    assert made.patch.changes[0].text.count("@@") == 1
    plans = [Engine([Catalogued("fix", overlay_of(patch, *more), "")]).plan(base.read) for more in ((), (made.patch,))]
    assert plans[0].files == plans[1].files


def test_a_draft_changes_nothing_where_a_shape_fits() -> None:
    """The newer of two shapes is tried first; on an older vLLM, it would change another function than the older one."""
    before = f"{F}\n\ndef g(a):\n{BODY}"
    oldest = patched(before.replace("a.two(1)", "a.two(2)", 1), before), vllm("0", {FILE: before})
    between = f"def g(a):\n{BODY}".replace("    c = b.three()", "\n    # Three of them.\n    c = b.tri()")
    patch, base = patched(between.replace("a.two(1)", "a.two(2)"), between), vllm("1", {FILE: between})
    target = vllm("2", {FILE: between.replace("b.tri()", "b.three()")})

    made = draft("fix", patch, base, target)
    none = draft("fix", patch, base, target, [oldest])

    assert made.patch is not None
    assert none.patch is None
    assert "it fits vLLM 0, too, and makes another program there than the shape for that" in str(none.stopped[0])


# The module before and after the patch, the module of the target, and what is noted of the draft.
NOTED: Mapping[str, tuple[str, str, str, str]] = {
    "the function has another name": (
        F,
        checked(F),
        F.replace("def f(", "def f_slow("),
        "vllm/p/m.py: it changes `f_slow`, which the patch does not name",
    ),
    "the block has another condition": (
        IF,
        IF.replace("        return d\n", "        d.check()\n        return d\n"),
        IF.replace("if a.x", "if not a.x"),
        "vllm/p/m.py: in `f`, it changes the block `if not a.x`, which the patch does not name",
    ),
    "upstream made one of the changes": (
        f"{F}\n\ndef g(a):\n{BODY}",
        f"{F}\n\ndef g(a):\n{BODY}".replace("a.two(1)", "a.two(2)"),
        f"{F}\n\ndef g(a):\n{BODY}".replace("a.two(1)", "a.two(2)", 1).replace(
            "two(1)\n    c = b.three()", "two(1)\n    c = b.tri()"
        ),
        "vllm/p/m.py: it changes nothing in `f`, as the patch does",
    ),
    "upstream has the new line elsewhere": (
        BASE,
        CHECKED,
        BASE.replace("    return c", "    check(b)\n    return c").replace("c = three(b)", "c = tri(b)"),
        "vllm/p/m.py: `check(b)`: vLLM 2 has it more often than vLLM 1: read whether it is double now",
    ),
}


@pytest.mark.parametrize("case", NOTED)
def test_what_is_noted_of_a_draft(case: str) -> None:
    before, after, now, note = NOTED[case]

    made, stopped = drafted(patched(after, before), vllm("2", {FILE: now}), vllm("1", {FILE: before}))

    assert made is not None, stopped
    assert any(one.startswith(note) for one in made.notes), made.notes


def test_line_ends_are_no_change() -> None:
    now = BASE.replace("    return c", "    return c + 1").replace("c = three(b)", "c = tri(b)").replace("\n", "\r\n")

    made, _ = drafted(patched(CHECKED), vllm("2", {FILE: now}), vllm("1", {FILE: BASE}))

    assert made is not None

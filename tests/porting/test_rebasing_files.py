"""Drafts of a patch file of several files: each goes its own way, and new modules and data files come along."""

from __future__ import annotations

import pytest
from vpatch.core.patch_file import PatchFile
from vpatch.porting.bases import PatchBase
from vpatch.porting.proof import ModuleVersions, patch_file
from vpatch.porting.rebasing import begun, draft

from tests.porting.test_rebasing import AFTER, BASE, BESIDE, CHECKED, FILE, F, checked, drafted, result, vllm


@pytest.mark.parametrize("place", [FILE, "vllm/x/m.py"])
def test_a_new_module_comes_with_a_draft(place: str) -> None:
    """Its lines are no hunks, and it is where it was, also if a module that changes was moved."""
    extra = "vllm/_vpatch/extra.py"
    added = (ModuleVersions(extra, None, "EXTRA = 1\n"), ModuleVersions(FILE, BASE, AFTER))
    base = vllm("1", {FILE: BASE})
    patch, _ = patch_file("fix", {"Subject": "A fix", "Base": "1"}, added, base.read)
    now = BASE if place != FILE else BASE.replace("c = three(b)", "c = tri(b)")

    made, stopped = drafted(patch, vllm("2", {place: now}), base)

    assert made is not None, stopped
    assert made.patch is not None
    assert [change.path for change in made.patch.changes] == [extra, place]


OTHER, EXTRA = "vllm/p/n.py", "vllm/_vpatch/extra.py"
# The second of two modules in the target, and the way of each; "" if it has no draft.
APART = {
    "as it was, but for a comment": (F.replace("    c =", "    # Here.\n    c ="), ("the hunks as they are", BESIDE)),
    "with the change": (checked(F), (BESIDE,)),
    "with a line on the left of the change, and one on the right": (
        F.replace("    c = b.three()", "    c = b.tri()").replace("two(1)", "two(3)"),
        ("", BESIDE),
    ),
}


@pytest.mark.parametrize("case", APART)
def test_each_module_goes_its_own_way(case: str) -> None:
    now, ways = APART[case]
    versions = (
        ModuleVersions(OTHER, F, checked(F)),
        ModuleVersions(FILE, BASE, CHECKED),
        ModuleVersions(EXTRA, None, "A = 1\n"),
    )
    base = vllm("1", {FILE: BASE, OTHER: F})
    patch, _ = patch_file("fix", {"Subject": "A fix", "Base": "1"}, versions, base.read)
    inserted = BASE.replace("b = two(a)", "b = two(a)\n    if b:\n        four(b)")
    target = vllm("2", {FILE: "from .z.m import f\n", OTHER: now, "vllm/p/z/m.py": inserted})

    found = draft("fix", patch, base, target)

    assert tuple(one.how for one in found.parts) == ways
    assert (found.patch is not None) is ("" not in ways), found.stopped
    assert [one.path for one in found.undone] == [OTHER] * ("" in ways)
    texts = begun("fix", found, patch, target)
    assert texts[EXTRA] == "A = 1\n"
    assert "    check(b)\n    if b:\n" in texts["vllm/p/z/m.py"]
    if not found.patch:
        assert texts[OTHER] == now
        texts = {**texts, OTHER: now.replace("    c =", "    b.check()\n    c =")}
        by_hand = draft("fix", patch, base, target, mine=texts).patch
        assert by_hand is not None
        assert "b.check()" in result(by_hand, target, OTHER)
        assert {one.path for one in by_hand.changes} == {EXTRA, "vllm/p/z/m.py", OTHER}


TABLE = "vllm/p/table.json"
ROWS = '{\n"a": 1,\n"b": 2,\n"c": 3,\n"d": 4,\n"e": 5\n}'


def with_table(before: str | None, after: str) -> tuple[PatchFile, PatchBase]:
    """Return a patch file of a module and a data file, and the vLLM that it is for."""
    base = vllm("1", {FILE: BASE} | ({} if before is None else {TABLE: before}))
    changes = (ModuleVersions(FILE, BASE, CHECKED), ModuleVersions(TABLE, before, after))
    return patch_file("fix", {"Subject": "A fix", "Base": "1"}, changes, base.read)[0], base


@pytest.mark.parametrize(
    ("now", "wanted"),
    [(ROWS, ROWS.replace("1", "9")), (ROWS.replace("5", "6"), ROWS.replace("1", "9").replace("5", "6"))],
)
def test_a_data_file_is_merged_by_lines(now: str, wanted: str) -> None:
    patch, base = with_table(ROWS, ROWS.replace("1", "9"))
    module = BASE.replace("c = three(b)", "c = tri(b)").replace("    return c", "    return c + 1")

    made, stopped = drafted(patch, target := vllm("2", {FILE: module, TABLE: now}), base)

    assert made is not None, stopped
    assert result(made.patch, target, TABLE) == wanted


def test_a_data_file_that_upstream_made_otherwise() -> None:
    patch, base = with_table(ROWS, ROWS.replace("1", "9"))

    made, stopped = drafted(patch, vllm("2", {FILE: BASE, TABLE: ROWS.replace("1", "8")}), base)

    assert made is None
    assert f"{TABLE}: both sides changed line 2" in str(stopped[0])


def test_a_data_file_that_upstream_has_is_left_out() -> None:
    patch, base = with_table(None, ROWS)

    made, stopped = drafted(patch, vllm("2", {FILE: BASE, TABLE: ROWS}), base)

    assert made is not None, stopped
    assert made.patch is not None
    assert [change.path for change in made.patch.changes] == [FILE]
    assert f"{TABLE}: left out: vLLM 2 has it" in made.notes

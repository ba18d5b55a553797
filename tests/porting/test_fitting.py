"""Whether a change fits a text: exactly, elsewhere, in part, reversed; and why not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from vpatch.porting.diffs import parse
from vpatch.porting.fitting import Fitting, Misfit, fit, patched

from tests.conftest import Trees
from tests.needs import need
from tests.porting.making import change_of, changes_of, differences, git_diff
from tests.releases import FIRST

TEXT = "".join(f"line {number}\n" for number in range(1, 31))
DIFF = """\
--- a/vllm/m.py
+++ b/vllm/m.py
@@ -4,3 +4,4 @@
 line 4
+new
 line 5
 line 6
@@ -20,3 +21,2 @@
 line 20
-line 21
 line 22
"""
AFTER = TEXT.replace("line 5\n", "new\nline 5\n").replace("line 21\n", "")
ABOVE = "first\nsecond\n"


@pytest.mark.parametrize(
    ("before", "after", "offset"),
    [
        (TEXT, AFTER, 0),
        (ABOVE + TEXT, ABOVE + AFTER, 4),
        (TEXT.replace("line 10\n", ""), AFTER.replace("line 10\n", ""), 1),
        (TEXT.replace("\n", "\r\n"), AFTER.replace("\n", "\r\n"), 0),
        (TEXT + "line 4\nline 5\nline 6\n", AFTER + "line 4\nline 5\nline 6\n", 0),
    ],
)
def test_a_change_fits(before: str, after: str, offset: int) -> None:
    """At the lines that it says, or at the only other place; where lines end with CRLF, so do those that come."""
    change = change_of(DIFF)

    assert patched(change, before) == after
    assert fit(change, before) == Fitting(2, 2, offset)


FIRST_HUNK = "vllm/m.py: hunk 1 of 2, `@@ -4,3 +4,4 @@`, does not fit: "
LAST_HUNK = "vllm/m.py: hunk 2 of 2, `@@ -20,3 +21,2 @@`, does not fit: "
REVERSED = "vllm/m.py has the change already, or the diff is reversed"
MISFITS: dict[str, tuple[str | None, str, int]] = {
    "no file": (None, "vllm/m.py does not exist", 0),
    "an empty file": ("", f"{FIRST_HUNK}the file ends before `line 4`", 0),
    "another line": (TEXT.replace("line 5\n", "other\n"), f"{FIRST_HUNK}line 5 is `other`, not `line 5`", 1),
    "another line, moved": (
        ABOVE + TEXT.replace("line 4\n", "\tx\n"),
        rf"{FIRST_HUNK}line 6 is `\tx`, not `line 4`",
        1,
    ),
    "a line more": (TEXT.replace("line 21\n", "x\nline 21\n"), f"{LAST_HUNK}line 21 is `x`, not `line 20`", 1),
    "an end": (TEXT[: TEXT.index("line 22")], f"{LAST_HUNK}the file ends before `line 22`", 1),
    "no newline": (
        TEXT[: TEXT.index("\nline 23")],
        f"{LAST_HUNK}line 22 is `line 22` without a newline, not `line 22`",
        1,
    ),
    "two places": ("x\n" + TEXT * 2, f"{FIRST_HUNK}its lines are there 2 times, at lines 5, 35", 0),
    "CRLF in part": (TEXT.replace("line 5\n", "line 5\r\n"), rf"{FIRST_HUNK}line 5 is `line 5\r`, not `line 5`", 1),
    "a long line": (
        TEXT.replace("line 5\n", "x" * 99 + "\n"),
        f"{FIRST_HUNK}line 5 is `{'x' * 57}...`, not `line 5`",
        1,
    ),
    "the result": (AFTER, REVERSED, 0),
    "the result, moved": (ABOVE + AFTER, REVERSED, 0),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_change_does_not_fit(case: str) -> None:
    before, message, fitting = MISFITS[case]
    change = change_of(DIFF)

    with pytest.raises(Misfit) as refused:
        patched(change, before)
    assert str(refused.value) == message
    assert fit(change, before).fitting == fitting


def test_a_new_module_fits_where_there_is_none() -> None:
    change = change_of("--- /dev/null\n+++ b/vllm/m.py\n@@ -0,0 +1,2 @@\n+a\n+b\n")

    assert [patched(change, before) for before in (None, "")] == ["a\nb\n"] * 2
    assert [fit(change, before) for before in (None, "x\n")] == [Fitting(1, 1, 0), Fitting(1, 0, 0)]
    for before, why in [
        ("a\nb\n", "vllm/m.py has the change already, or the diff is reversed"),
        ("a\nb\nc\n", "vllm/m.py: hunk 1 of 1, `@@ -0,0 +1,2 @@`, does not fit: it adds the file, which exists"),
    ]:
        with pytest.raises(Misfit) as refused:
            patched(change, before)
        assert str(refused.value) == why


def test_a_diff_of_crlf_fits_that_alone(tmp_path: Path) -> None:
    """One module of vLLM 0.33.0 has CRLF; git's diff of it has LF in its own lines."""
    need("git")
    old, new = (text.replace("\n", "\r\n") for text in (TEXT, AFTER))
    change = change_of(git_diff(tmp_path, {"vllm/m.py": old}, {"vllm/m.py": new}))

    assert patched(change, old) == new
    with pytest.raises(Misfit, match=r"line 2 is `line 2`, not `line 2\\r`$"):
        patched(change, TEXT)


def drawn(draw: random.Random, text: str) -> str:
    """Return a text with lines that go, come, and come twice; a few draws end without a newline."""
    lines = text.splitlines(keepends=True)
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(lines) + 1)
        lines[at : at + draw.randrange(4)] = draw.choices(
            ["", "x", "-- y", "++ z", " ", "\tq", "line 3"], k=draw.randrange(4)
        )
        lines = [line if line.endswith("\n") else f"{line}\n" for line in lines]
    text = "".join(lines)
    return text.removesuffix("\n") if draw.random() < 0.1 else text


def test_drawn_changes(tmp_path: Path) -> None:
    """Of 200 edits, git's diff gives the text after, and reversed the text before; what is done is recognized."""
    need("git")
    draw = random.Random(44)  # noqa: S311
    olds = {f"vllm/m{number}.py": drawn(draw, TEXT * 2) for number in range(200)}
    news = {path: drawn(draw, old) for path, old in olds.items()}
    for options in ((), ("-R",), ("-U1",)):
        before, after = (news, olds) if options == ("-R",) else (olds, news)
        changes = changes_of(parse(git_diff(tmp_path, olds, news, *options)))

        assert {one.path for one in changes} == {path for path in olds if olds[path] != news[path]}
        for change in changes:
            assert patched(change, before[change.path]) == after[change.path], change.path
            assert fit(change, before[change.path]).offset == 0
    assert len(changes) > 190
    for change in changes:
        with pytest.raises(Misfit, match="has the change already"):
            patched(change, news[change.path])


@pytest.mark.parametrize("program", ["git", "diff"])
def test_modules_of_vllm_from_one_release_to_the_next(program: str, pristine: Trees, tmp_path: Path) -> None:
    need(program)
    paths = ("vllm/v1/core/sched/scheduler.py", "vllm/config/cache.py", "vllm/v1/worker/gpu_model_runner.py")
    old, new = ({path: (pristine(version) / path).read_bytes().decode() for path in paths} for version in FIRST)
    text = git_diff(tmp_path, old, new)
    changes = changes_of(parse(text if program == "git" else differences(tmp_path, "diff", "-ru", "old", "new")))

    assert {change.path: patched(change, old[change.path]) for change in changes} == new
    for change in changes:
        assert fit(change, new[change.path]).fitting < len(change.hunks)

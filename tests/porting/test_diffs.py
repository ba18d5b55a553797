"""Line diffs as git and diff make them: the path of each file, its hunks, and what an overlay can have of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.porting.diffs import LineHunk, parse
from vpatch.porting.fitting import patched
from vpatch.porting.kept import kept

from tests.failures import problem_of, problems_of
from tests.needs import need
from tests.porting.making import change_of, changes_of, differences, git_diff, write

OLD = "import a\n\n\ndef f(x):\n    a(x)\n    return x\n"
NEW = "import a\n\n\ndef f(x):\n    a(x, 1)\n    return x\n\n\nlast = 1\n"
HUNK = "@@ -1 +1 @@\n-a\n+b\n"


def test_a_hunk() -> None:
    (file,) = parse("Why.\n\ndiff --git a/vllm/m.py b/vllm/m.py\n--- a/vllm/m.py\n+++ b/vllm/m.py\n" + HUNK, above=100)

    assert file.hunks == (LineHunk("@@ -1,1 +1,1 @@", 106, 1, ("a\n",), ("b\n",)),)
    assert (file.path, file.line, file.new, file.odd) == ("vllm/m.py", 103, False, "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a/vllm/x/m.py", "b/vllm/x/m.py"),
        ("c/vllm/x/m.py", "i/vllm/x/m.py"),
        ("i/vllm/x/m.py", "w/vllm/x/m.py"),
        ("vllm/x/m.py", "vllm/x/m.py"),
        ("./vllm//x/m.py", "./vllm/x/m.py"),
        ("a/vllm/x/m.py\t2026-01-01 10:00:00.0 +0100", "b/vllm/x/m.py\t2026-01-01 10:00:00.0 +0100"),
        ("old/vllm/x/m.py", "new/vllm/x/m.py"),
        ("a/old/vllm/x/m.py", "b/new/vllm/x/m.py"),
        ("vllm.orig/x/m.py", "vllm/x/m.py"),
        ("vllm/x/m.py", "vllm-patched/x/m.py"),
        ("vllm/x/m.py.orig", "vllm/x/m.py"),
        ("vllm/x/m.py", "vllm/x/m.py.new"),
        ("vllm/x/m.py~", "vllm/x/m.py"),
        ("vllm-0.26.0/vllm/x/m.py", "vllm-0.26.0.mine/vllm/x/m.py"),
        ("vllm/vllm/x/m.py", "vllm.mine/vllm/x/m.py"),
        ("a/third_party/vllm/vllm/x/m.py", "b/third_party/vllm/vllm/x/m.py"),
        ("/usr/lib/python3.12/site-packages/vllm/x/m.py", "/tmp/site-packages/vllm/x/m.py"),  # noqa: S108
        ("usr/local/lib/python3.12/dist-packages/vllm/x/m.py", "/x/dist-packages/vllm/x/m.py"),
        ("lib/site-packages/vllm/x/m.py.orig", "lib/site-packages/vllm/x/m.py"),
        ('"a/vllm/x/m.py"', '"b/vllm/x/\\155.py"'),
    ],
)
def test_a_path(old: str, new: str) -> None:
    change = change_of(f"--- {old}\n+++ {new}\n{HUNK}")

    assert (change.path, change.new) == ("vllm/x/m.py", False)


@pytest.mark.parametrize("options", [(), ("--no-prefix",), ("-U1",), ("-W",), ("--patience", "--stat", "-p")])
def test_git_diff(options: tuple[str, ...], tmp_path: Path) -> None:
    need("git")
    change = change_of(git_diff(tmp_path, {"vllm/m.py": OLD}, {"vllm/m.py": NEW}, *options))

    assert patched(change, OLD) == NEW


@pytest.mark.parametrize("options", ["-u", "-ru", "-ruN", "-ruNp", "-rU1"])
def test_diff(options: str, tmp_path: Path) -> None:
    need("diff")
    write(tmp_path / "old", {"vllm/m.py": OLD})
    write(tmp_path / "new", {"vllm/m.py": NEW})
    file = "" if "r" in options else "/vllm/m.py"
    change = change_of(differences(tmp_path, "diff", options, f"old{file}", f"new{file}"))

    assert patched(change, OLD) == NEW


@pytest.mark.parametrize("program", ["git", "diff"])
def test_new_modules(program: str, tmp_path: Path) -> None:
    """One is empty, one has no newline at its end, and an empty one of vLLM's gets lines, which is no new module."""
    need(program)
    old = {"vllm/__init__.py": "", "vllm/m.py": OLD}
    new = {"vllm/__init__.py": "a = 1\n", "vllm/m.py": OLD, "vllm/b/__init__.py": "", "vllm/b/c.py": "b = 1\n\nc = 2"}
    text = git_diff(tmp_path, old, new)
    text = text if program == "git" else differences(tmp_path, "diff", "-ruN", "old", "new")
    changes = {change.path: change for change in changes_of(parse(text))}

    # `diff` says nothing of an empty file that comes.
    expected = {path: text for path, text in new.items() if path != "vllm/m.py" and (program == "git" or text)}
    assert {path: patched(change, old.get(path)) for path, change in changes.items()} == expected
    assert changes["vllm/b/c.py"].new
    assert program == "diff" or not changes["vllm/__init__.py"].new


def test_a_module_twice_is_changed_twice() -> None:
    """As git apply and patch do it: `cat one.patch two.patch > all.patch` is common."""
    one = "--- a/vllm/m.py\n+++ b/vllm/m.py\n@@ -1 +1,2 @@\n a\n+b\n"
    two = "--- a/vllm/m.py\n+++ b/vllm/m.py\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
    new = "--- /dev/null\n+++ b/vllm/m.py\n@@ -0,0 +1 @@\n+a\n"
    change = change_of(one + two)

    assert patched(change, "a\n") == "a\nc\n"
    assert [hunk.line for hunk in change.hunks] == [3, 8]
    assert patched(change_of(new + one + two), None) == "a\nc\n"
    assert change_of(new + one).new


@pytest.mark.parametrize("mark", ["\\ No newline at end of file", "\\ Kein Zeilenumbruch am Dateiende."])
@pytest.mark.parametrize(("old", "new"), [("a\nb", "a\nc"), ("a\nb", "a\nc\n"), ("a\nb\n", "a\nc"), ("b\na", "c\na")])
def test_no_newline_at_the_end(old: str, new: str, mark: str, tmp_path: Path) -> None:
    need("git")
    text = git_diff(tmp_path, {"vllm/m.py": old}, {"vllm/m.py": new})
    change = change_of(text.replace("\\ No newline at end of file", mark))

    assert patched(change, old) == new


def test_lines_that_look_like_heads(tmp_path: Path) -> None:
    need("git")
    old = "-- a\n++ b\n@@ -1 +1 @@\ndiff --git a/x b/x\n\\ x\nBinary files a and b differ\n\f\x85\u2028 y\n"
    new = old.replace("-- a", "-- a/vllm/n.py").replace("++ b", "++ b/vllm/n.py").replace("@@", "@@@").replace("y", "z")

    assert patched(change_of(git_diff(tmp_path, {"vllm/m.py": old}, {"vllm/m.py": new})), old) == new


def test_lines_without_the_space_of_an_empty_line() -> None:
    """As editors leave them that strip lines."""
    assert (
        patched(change_of("--- a/vllm/m.py\n+++ b/vllm/m.py\n@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n\n"), "a\n\nb\n")
        == "a\n\nc\n"
    )


OUT = (
    "a/tests/vllm/test_m.py",
    "a/docs/m.md",
    "a/.github/x.yml",
    "a/requirements/cuda.txt",
    "a/README.md",
    "a/pyproject.toml",
)


def of(*paths: str, hunk: str = HUNK) -> str:
    return "".join(f"--- {path}\n+++ {path}\n{hunk}" for path in paths)


def test_what_is_not_installed_is_left_out() -> None:
    (change,), left_out = kept(parse(of("a/vllm/m.py", *OUT)), "fix.patch", python_only=False)

    assert change.path == "vllm/m.py"
    assert left_out == ("tests/vllm/test_m.py, docs/m.md, .github/x.yml and 3 more: not part of an installed vLLM",)
    assert kept(parse(of(*OUT)), "fix.patch", python_only=False)[0] == ()


def test_python_only_leaves_out_the_rest() -> None:
    paths = ("a/csrc/m.cu", "a/setup.py", "a/vllm/m.py", "a/vllm/m.json", "a/flashinfer/m.py", "a/vllm/a/_C.abi3.so")
    (change,), left_out = kept(parse(of(*paths)), "fix.patch", python_only=True)

    assert change.path == "vllm/m.py"
    assert left_out == (
        "csrc/m.cu, setup.py, vllm/a/_C.abi3.so: part of vLLM's build, which an overlay cannot repeat",
        "flashinfer/m.py: not part of vLLM",
        "vllm/m.json: not Python",
    )


@pytest.mark.parametrize(
    ("path", "line", "python", "needed"),
    [
        ("csrc/m.cu", 'ops.def("new_op(Tensor! out) -> ()");', "torch.ops._C.new_op(out)", "new_op"),
        ("csrc/m.cu", 'm.impl("_C::new_op", &f);', "ops.new_op(out)", "new_op"),
        ("rust/src/lib.rs", "pub fn new_op(a: u8) {", "_rust.new_op(1)", "new_op"),
        ("vllm/new_table.json", "{}", "open('new_table.json')", "new_table"),
        ("csrc/m.cu", "int new_op = 1;", "new_op = 1", ""),
        ("csrc/m.cu", 'ops.def("new_op(Tensor! out) -> ()");', "torch.ops._C.old_op(out)", ""),
    ],
)
def test_python_that_needs_the_rest_is_refused(path: str, line: str, python: str, needed: str) -> None:
    files = parse(
        of(f"a/{path}", hunk=HUNK.replace("+b", f"+{line}")) + of("a/vllm/m.py", hunk=HUNK.replace("+b", f"+{python}"))
    )
    if not needed:
        assert kept(files, "fix.patch", python_only=True)[0]
        return

    cause = problem_of(lambda: kept(files, "fix.patch", python_only=True)).cause
    assert cause == f"line 1: Python that the patch adds needs `{needed}` of {path}"


def test_every_kind_of_files_is_refused_at_once() -> None:
    files = parse(of("a/csrc/a.cu", "a/vllm/.a.json", "a/vllm/_vpatch/b.jinja", "a/x/m.py", "a/vllm/m.py"))

    assert [one.cause for one in problems_of(lambda: kept(files, "fix.patch", python_only=False))] == [
        "line 1: csrc/a.cu: part of vLLM's build, which an overlay cannot repeat",
        "line 16: x/m.py: not part of vLLM",
        "line 6: vllm/.a.json, vllm/_vpatch/b.jinja: a patch file cannot have it",
    ]


def test_without_unidiff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "unidiff.patch", None)
    with pytest.raises(Failure, match=r"^cannot read diffs: unidiff\.patch: not installed: .*\[(import|all)\]"):
        parse(of("a/vllm/m.py"))

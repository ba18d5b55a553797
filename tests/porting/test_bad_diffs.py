"""What cannot be imported, each with the one sentence that says so: diffs that are damaged, or of other things."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from vpatch.errors import Failure
from vpatch.porting.sources import BYTES, carried

from tests.failures import problem_of, problems_of

HEAD = b"--- a/vllm/m.py\n+++ b/vllm/m.py\n"
HUNK = b"@@ -1,3 +1,3 @@\n a\n-b\n+c\n d\n"
GOOD = HEAD + HUNK


def git(path: str, *lines: str, hunk: bytes = b"") -> bytes:
    """Return a file of git's diff, with its head's lines below the first."""
    head = f"diff --git a/{path} b/{path}\n" + "".join(f"{line}\n" for line in lines)
    return head.encode() + (f"--- a/{path}\n+++ b/{path}\n".encode() + hunk if hunk else b"")


def of(path: str, hunk: bytes = HUNK) -> bytes:
    """Return a plain diff of a file."""
    return f"--- {path}\n+++ {path}\n".encode() + hunk


ONLY = "; an overlay only changes and adds files"
BUILD = "part of vLLM's build, which an overlay cannot repeat; `--python-only` leaves it out"
OTHER = "a patch file cannot have it; `--python-only` leaves it out"
BAD: dict[str, tuple[bytes, str]] = {
    # Paths.
    "a path that leaves": (
        of("a/vllm/../../etc/m.py"),
        "line 1: the path `a/vllm/../../etc/m.py` leaves its folder by `..`",
    ),
    "site-packages, left": (of("/x/site-packages/../m.py"), "line 1: the path `/x/site-packages/../m.py` leaves its f"),
    "an absolute path": (of("/etc/vllm/m.py"), "line 1: the absolute path `/etc/vllm/m.py` is not in site-packages"),
    "a control character": (of('"a/vllm/\\001.py"'), "line 1: the path 'a/vllm/\\x01.py' has a control character"),
    "a path of Latin-1": (of('"a/vllm/\\374.py"'), 'line 1: the path "a/vllm/\\374.py" is not UTF-8'),
    "a byte too large": (of('"a/vllm/\\777.py"'), 'line 1: the path "a/vllm/\\777.py" is not UTF-8'),
    "a space in a module": (of("a/vllm/a m.py"), "line 1: vllm/a m.py: no module can have this name"),
    "a quoted module": (of('"a/vllm/\\303\\274.py"'), "line 1: vllm/ü.py: no module can have this name"),
    "no path": (of("/dev/null"), "line 1: neither `---` nor `+++` names a file"),
    "another project": (of("a/src/m.py"), "it changes no file below vllm/, only src/m.py"),
    "no folder": (of("scheduler.py"), "it changes no module of vLLM: scheduler.py: not part of an installed vLLM"),
    "tests alone": (of("a/tests/vllm/m.py"), "it changes no module of vLLM: tests/vllm/m.py: not part of an installed"),
    "a package beside": (
        GOOD + of("/p/site-packages/flashinfer/a.py"),
        "line 8: flashinfer/a.py: not part of vLLM; `--python-only` leaves it out",
    ),
    "two modules": (b"--- a/vllm/m.py\n+++ b/vllm/n.py\n" + HUNK, f"line 1: vllm/n.py: it is renamed{ONLY}"),
    # What no overlay can do.
    "a link": (
        git("vllm/m.py", "new file mode 120000", hunk=b"@@ -0,0 +1 @@\n+/etc\n").replace(
            b"--- a/vllm/m.py", b"--- /dev/null"
        ),
        f"line 1: vllm/m.py: it is a symbolic link{ONLY}",
    ),
    "a submodule": (
        git(
            "vllm/third_party/x",
            "index 1111111..2222222 160000",
            hunk=b"@@ -1 +1 @@\n-Subproject commit 1\n+Subproject commit 2\n",
        ),
        f"line 1: vllm/third_party/x: it is a submodule{ONLY}",
    ),
    "binary, of git": (
        git(
            "vllm/m.py",
            "index 1111111..2222222 100644",
            "GIT binary patch",
            "literal 3",
            "KcmZQzU|",
            "",
            "literal 0",
            "HcmV?d0",
        ),
        f"line 1: vllm/m.py: the change is binary{ONLY}",
    ),
    "binary, of diff": (
        b"Binary files old/vllm/_C.abi3.so and new/vllm/_C.abi3.so differ\n",
        f"line 1: vllm/_C.abi3.so: the change is binary{ONLY}",
    ),
    "a rename": (
        git("vllm/m.py", "similarity index 100%", "rename from vllm/m.py", "rename to vllm/n.py").replace(
            b"b/vllm/m", b"b/vllm/n"
        ),
        f"line 1: vllm/n.py: it is renamed{ONLY}",
    ),
    "a copy": (
        git("vllm/m.py", "similarity index 100%", "copy from vllm/m.py", "copy to vllm/n.py").replace(
            b"b/vllm/m", b"b/vllm/n"
        ),
        f"line 1: vllm/n.py: it is a copy of another file{ONLY}",
    ),
    "a mode": (git("vllm/m.py", "old mode 100644", "new mode 100755"), f"line 1: vllm/m.py: its mode changes{ONLY}"),
    "a mode and lines": (
        git("vllm/m.py", "old mode 100644", "new mode 100755", hunk=HUNK),
        f"line 1: vllm/m.py: its mode changes{ONLY}",
    ),
    "deleted": (
        git("vllm/m.py", "deleted file mode 100644", hunk=b"@@ -1 +0,0 @@\n-a\n").replace(
            b"+++ b/vllm/m.py", b"+++ /dev/null"
        ),
        f"line 1: vllm/m.py: it is deleted{ONLY}",
    ),
    "deleted, of diff": (
        b"--- o/vllm/m.py\t2026-01-01 00:00:00\n+++ n/vllm/m.py\t1970-01-01 00:00:00\n@@ -1 +0,0 @@\n-a\n",
        f"line 1: vllm/m.py: it is deleted{ONLY}",
    ),
    "a file that is only there": (
        b"Only in n/vllm: new.py\ndiff -ru o/vllm/m.py n/vllm/m.py\n" + GOOD,
        "line 1: the diff lacks a file; make it with `diff -ruN`",
    ),
    # What an overlay cannot do yet, or vLLM's build does.
    "native code": (GOOD + of("a/csrc/a.cu") + of("a/cmake/b.cmake"), f"line 8: csrc/a.cu, cmake/b.cmake: {BUILD}"),
    "a build's script": (GOOD + of("a/setup.py"), f"line 8: setup.py: {BUILD}"),
    "native code alone": (of("a/rust/src/lib.rs"), f"line 1: rust/src/lib.rs: {BUILD}"),
    "many of them": (
        b"".join(of(f"a/csrc/{c}.cu") for c in "abcde"),
        f"line 1: csrc/a.cu, csrc/b.cu, csrc/c.cu and 2 more: {BUILD}",
    ),
    "a library, as text": (of("a/vllm/_C.abi3.so"), f"line 1: vllm/_C.abi3.so: {BUILD}"),
    "hidden data": (GOOD + of("a/vllm/.a.json"), f"line 8: vllm/.a.json: {OTHER}"),
    "data of vpatch's": (of("a/vllm/_vpatch/a.json"), f"line 1: vllm/_vpatch/a.json: {OTHER}"),
    "data, binary": (
        b"diff --git a/vllm/a.json b/vllm/a.json\nBinary files a/vllm/a.json and b/vllm/a.json differ\n",
        f"line 1: vllm/a.json: the change is binary{ONLY}",
    ),
    "data, renamed": (
        of("a/vllm/a.json").replace(b"+++ a/vllm/a", b"+++ b/vllm/b"),
        "line 1: vllm/b.json: it is renamed",
    ),
    # Hunks.
    "fewer lines": (
        HEAD + b"@@ -1,4 +1,4 @@\n a\n-b\n+c\n d\n",
        "line 3: the hunk has fewer lines than its header counts; the f",
    ),
    "fewer lines, then a file": (
        HEAD + b"@@ -1,4 +1,4 @@\n a\n-b\n+c\n d\ndiff --git a/vllm/n.py b/vllm/n.py\n",
        "line 3: the hunk ends at line 8, before as many lines as its header counts",
    ),
    "more lines": (
        HEAD + b"@@ -1,2 +1,2 @@\n a\n-b\n+c\n d\n",
        "line 3: the hunk has more lines than its header counts",
    ),
    "more lines on a side": (
        HEAD + b"@@ -1,3 +1 @@\n a\n b\n",
        "line 3: the hunk has more lines than its header counts, at l",
    ),
    "counts of nothing": (
        HEAD + b"@@ -0,0 +0,0 @@\n+a\n",
        "line 3: the hunk has more lines than its header counts, at line 4",
    ),
    "a count too large": (HEAD + b"@@ -1,%s +1 @@\n a\n" % (b"9" * 5000), "line 3: vpatch cannot read it as a diff"),
    "a damaged header": (GOOD + b"@@ -9,3 +9 @\n", "line 8: `@@ -9,3 +9 @` is no header of a hunk"),
    "a damaged first header": (HEAD + b"@@ -1 @@\n-a\n", "line 3: `@@ -1 @@` is no header of a hunk"),
    "no file": (HUNK, "line 1: a hunk has no lines `--- PATH` and `+++ PATH` above it"),
    "half a head": (
        b"diff --git a/vllm/m.py b/vllm/m.py\n+++ b/vllm/n.py\n" + HUNK,
        "line 2: `+++` has no matching `---` above it",
    ),
    "no context": (
        HEAD + b"@@ -4,0 +5 @@\n+a\n",
        "line 3: the hunk shows no lines around its own; make it with `g",
    ),
    "truncated in a line": (GOOD[:-2], "line 7: no newline at its end; it may be truncated"),
    "truncated behind a head": (
        git("vllm/m.py", "index 1111111..2222222 100644"),
        "line 1: vllm/m.py has no hunks; the diff may be",
    ),
    "a new file, truncated": (
        git("vllm/m.py", "new file mode 100644", "index 0000000..2222222"),
        "line 1: vllm/m.py has no hunks; t",
    ),
    # Text.
    "CRLF in part": (
        GOOD.replace(b"-b\n", b"-b\r\n"),
        "line 1: vllm/m.py has lines that end with CRLF and lines that end with LF",
    ),
    "Latin-1": (GOOD.replace(b"+c", b"+\xfc"), "line 6: it is not UTF-8"),
    "Latin-1 in a mail": (b"Subject: \xfc\n\n" + GOOD, "line 1: it is not UTF-8"),
    "a null byte": (GOOD.replace(b"+c", b"+\0"), "line 6: it has a null byte, and is no text"),
    "UTF-16": (GOOD.decode().encode("utf-16"), "it is UTF-16, as PowerShell writes by `>`; save it as UTF-8"),
    "large": (GOOD * (BYTES // len(GOOD) + 1), f"it has 10,485,780 bytes, more than {BYTES:,}"),
    "many lines": (GOOD + b"\n" * 200_000, "it has 200,007 lines, more than 200,000"),
    "many mails": (b"From a@example.org Tue Sep 1 10:00:00 2026\n\n" * 1001, "it has 1,001 mails, more than 1,000"),
    "a long line": (GOOD.replace(b"+c", b"+" + b"c" * 20_001), "line 6: it has more than 20,000 characters"),
    "empty": (b"", "it is empty"),
    "blank": (b"\n \n", "it is empty"),
    # Other things than diffs.
    "prose": (b"Apply this to vLLM.\n", "it has no diff"),
    "a mail without one": (b"From: a@example.org\nSubject: Hello\n\nIt works.\n", "it has no diff"),
    "a combined diff": (
        b"diff --cc vllm/m.py\nindex 1,2..3\n" + HEAD + b"@@@ -1,1 -1,1 +1,1 @@@\n- a\n -b\n++c\n",
        "line 5: a combined diff, of a merge; make one against a single parent",
    ),
    "a context diff": (
        b"*** a/vllm/m.py\n--- b/vllm/m.py\n***************\n*** 1 ****\n! a\n--- 1 ----\n! b\n",
        "it is a context diff; make a unified one with `diff -u`",
    ),
    "a normal diff": (b"3c3\n< a\n---\n> b\n", "it is a diff without context; make a unified one with `diff -u`"),
    "a script for ed": (b"3c\nb\n.\n", "it is a script for ed; make a unified diff with `diff -u`"),
    "a web page": (b"\n<!DOCTYPE html>\n<html>\n", "it is a page for browsers, not a diff; download the raw file"),
    "a patch file": (
        b"Format: 1\nSubject: x\nBase: 0.26.0\n\n--- vllm/m.py\n@@ f\n-a\n+b\n",
        "it is a patch file of vpatch already, which needs no import",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, sentence = BAD[case]
    monkeypatch.chdir(tmp_path)
    Path("fix.patch").write_bytes(data)

    message = str(problem_of(carried, ["fix.patch"], io.BytesIO()))
    assert message.removeprefix("cannot import: fix.patch: ")[: len(sentence)] == sentence


IS_A_MODULE = "if it is a module of vLLM that you changed, --as names its path there, as in --as vllm/envs.py"


def test_a_module_is_no_diff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside diffs in a folder, it is left out, and named."""
    monkeypatch.chdir(tmp_path)
    Path("envs.py").write_text("x = 1\n")
    folder(a_patch=GOOD, b_patch=GOOD, mine_py=b"x = 1\n", also_py=b"x = 1\n")()

    assert str(problem_of(carried, ["envs.py"], io.BytesIO())) == (
        f"cannot import: envs.py: it has no diff; {IS_A_MODULE}"
    )
    assert [one.left_out for one in carried(["fix"], io.BytesIO())] == [
        (f"also.py, mine.py: no diff; {IS_A_MODULE}",),
        (),
    ]


Make = Callable[[], object]


def folder(**files: bytes) -> Make:
    """Return what makes a folder `fix` with these files; `_` stands for a dot in their names."""

    def make() -> None:
        Path("fix").mkdir()
        for name, data in files.items():
            Path("fix", name.replace("_", ".")).write_bytes(data)

    return make


def sparse() -> None:
    Path("fix").touch()
    os.truncate("fix", 1 << 40)


PLACES: dict[str, tuple[Make, str]] = {
    "nothing": (lambda: None, "fix: no such file or directory"),
    "links in a circle": (lambda: Path("fix").symlink_to("fix"), "fix: too many levels of symbolic links"),
    "a pipe": (lambda: os.mkfifo("fix"), "fix: not a regular file; pipe it into `vpatch import -`"),
    "a sparse file": (sparse, "fix: it has 1,099,511,627,776 bytes, mo"),
    "an empty folder": (folder(), "fix: it has no .patch or .diff file; folders inside are not read"),
    "other files": (
        folder(m_py_orig=GOOD, m_py_rej=GOOD, _a_patch=GOOD, a_vpatch=GOOD, **{"a_patch~": GOOD}),
        "fix: it has no .patch or .diff file; folders inside are not read",
    ),
    "modules": (
        folder(m_py=GOOD),
        f"fix: it has no .patch or .diff file; folders inside are not read; {IS_A_MODULE}",
    ),
    "a series of none": (folder(series=b"# none\n\n"), "fix/series: it lists no patch"),
    "a series, lacking": (folder(series=b"# all\na.patch -p0\n"), "fix/series: line 2: `a.patch` does not exist"),
    "a series, leaving": (folder(series=b"../a.patch\n"), "fix/series: line 1: `../a.patch` is not in the folder"),
    "a series, absolute": (folder(series=b"/a.patch\n"), "fix/series: line 1: `/a.patch` is not in the folder"),
    "a series, reversed": (
        folder(series=b"a.patch -p1 -R\n"),
        "fix/series: line 1: vpatch does not know the option `-R`",
    ),
    "a series of Latin-1": (folder(series=b"a.patch\n\xfc.patch\n"), "fix/series: line 2: it is not UTF-8"),
    "no words": (folder(**{"0001_patch": GOOD}), "fix/0001.patch: neither its name nor a subject has words"),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_place(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, sentence = PLACES[case]
    monkeypatch.chdir(tmp_path)
    make()

    assert str(problem_of(carried, ["fix"], io.BytesIO()))[: len(sentence) + 15] == f"cannot import: {sentence}"


def test_all_problems_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder(a_patch=b"", b_patch=GOOD, c_patch=BAD["hidden data"][0] + BAD["a rename"][0])()

    assert [f"{one.where}: {one.reason}" for one in problems_of(carried, ["fix", "gone", "-"], io.BytesIO(GOOD))] == [
        "fix/a.patch: it is empty",
        f"fix/c.patch: line 15: vllm/n.py: it is renamed{ONLY}",
        f"fix/c.patch: line 8: vllm/.a.json: {OTHER}",
        "gone: no such file or directory",
        "standard input: neither its name nor a subject has words for an id; put it into a file that words name, as in "
        "`fix-foo.patch`",
    ]


def test_standard_input_is_read_up_to_the_bound() -> None:
    endless = io.BytesIO(GOOD * (BYTES // len(GOOD) + 9))

    assert problem_of(carried, ["-"], endless).cause == f"it has more than {BYTES:,} bytes"
    assert endless.tell() == BYTES + 1


def test_damage_is_a_failure_or_harmless() -> None:
    """Whatever bytes a file has, no other error comes of it."""
    draw = random.Random(44)  # noqa: S311
    whole = b"".join(
        [b"From a@b.example Mon Sep 1 10:00:00 2026\nSubject: =?utf-8?q?Fix?=\n\nWhy\n---\n", GOOD, BAD["a copy"][0]]
    )
    pieces = [
        *(data for data, _ in BAD.values() if len(data) < 1000),
        whole,
        GOOD,
        HUNK,
        b"\\ No newline at end of file\n",
    ]
    for _ in range(2000):
        data = bytearray(b"".join(draw.choices(pieces, k=draw.randrange(1, 4))) + GOOD)
        for _ in range(draw.randrange(4)):
            at = draw.randrange(len(data))
            data[at : at + draw.randrange(3)] = draw.choice(
                [b"", b"\n", b"\\", b"=?", b'"', b"-", b"@@", b"9", b"\r", b"\xc3"]
            )
        with suppress(Failure):
            carried(["-"], io.BytesIO(bytes(data)), python_only=draw.random() < 0.5)

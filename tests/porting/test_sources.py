"""Files, mails, mailboxes, folders and pipes: which patches they have, and what each says of itself."""

from __future__ import annotations

import base64
import io
import quopri
from itertools import pairwise
from pathlib import Path

import pytest
from vpatch.porting.diffs import Carried
from vpatch.porting.fitting import patched
from vpatch.porting.letters import name_of
from vpatch.porting.sources import carried

from tests.failures import problem_of
from tests.matrix.git_server import git
from tests.needs import need
from tests.porting.making import write

DIFF = "--- a/vllm/m.py\n+++ b/vllm/m.py\n@@ -1,3 +1,3 @@\n a\n-b\n+c\n d\n"
MAIL = """\
From 0123456789abcdef0123456789abcdef01234567 Mon Sep 17 00:00:00 2001
From: Ann <ann@example.org>
Date: Tue, 1 Sep 2026 10:00:00 +0000
Subject: [PATCH v2 1/3] =?UTF-8?q?Hold=20the=20lock=20=C3=BCber?=
 =?UTF-8?q?all?= (#12345)
MIME-Version: 1.0
Content-Type: text/plain; charset=UTF-8
Content-Transfer-Encoding: 8bit

The thread raises.

Base: 0.26.0
See https://github.com/vllm-project/vllm/pull/12346, and vllm-project/vllm#12345.

Signed-off-by: Ann <ann@example.org>
Co-authored-by: Bob <bob@example.org>
---
 vllm/m.py | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

diff --git a/vllm/m.py b/vllm/m.py
""" + (DIFF + "-- \n2.39.5\n\n")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(*sources: str, stdin: str = "") -> tuple[Carried, ...]:
    return carried(sources, io.BytesIO(stdin.encode()))


def one(text: str, file: str = "fix.patch") -> Carried:
    """Return the one patch of a file."""
    write(Path(), {file: text})
    (found,) = read(file)
    return found


def test_a_mail() -> None:
    found = one(MAIL, "0001-hold-the-lock.patch")

    assert (found.name, found.subject) == ("hold-the-lock", "Hold the lock überall (#12345)")
    assert found.description == (
        "The thread raises.\n\nBase: 0.26.0\n"
        "See https://github.com/vllm-project/vllm/pull/12346, and vllm-project/vllm#12345."
    )
    assert found.upstream == ("vllm-project/vllm#12345", "vllm-project/vllm#12346")
    assert (found.base, found.commit, found.left_out) == ("0.26.0", "0123456789abcdef0123456789abcdef01234567", ())
    assert patched(found.changes[0], "a\nb\nd\n") == "a\nc\nd\n"


def test_a_diff_alone() -> None:
    found = one(DIFF, "0003-pr12345-fix_Foo.diff")

    assert (found.name, found.subject, found.description) == ("fix-foo", "Fix foo", "")
    assert (found.upstream, found.base, found.commit) == (("vllm-project/vllm#12345",), None, "")


def test_a_head_as_debians() -> None:
    head = (
        "Description: Hold the lock\n The thread raises.\n .\n   And more.\n"
        "Origin: upstream, https://github.com/vllm-project/vllm/pull/12345\nBase: v0.26.0\n"
    )
    for between in ("", "---\n", "\n"):
        found = one(head + between + DIFF)

        assert (found.name, found.subject) == ("fix", "Hold the lock")
        assert found.description == "The thread raises.\n\n  And more."
        assert (found.upstream, found.base) == (("vllm-project/vllm#12345",), "0.26.0")


def test_prose_above_a_diff_is_the_description() -> None:
    found = one("The thread raises.\nNote: it is\nBase: main\n\nIndex: vllm/m.py\n====\n" + DIFF)

    assert (found.subject, found.base, found.description) == (
        "Fix",
        None,
        "The thread raises.\nNote: it is\nBase: main",
    )


@pytest.mark.parametrize("program", ["quoted-printable", "base64", "multipart"])
def test_a_mail_as_programs_encode_it(program: str) -> None:
    diff = DIFF.replace("+c", "+c = 'ü'")
    text = quopri.encodestring(diff.encode()) if program == "quoted-printable" else base64.encodebytes(diff.encode())
    head = f"Content-Transfer-Encoding: {'base64' if program == 'multipart' else program}\n\n{text.decode()}"
    if program == "multipart":
        head = (
            f"Content-Type: multipart/mixed; boundary=x\n\n--x\n\nWhy.\n--x\nContent-Type: text/x-patch\n{head}--x--\n"
        )
    found = one(f"From: a@example.org\nSubject: Re: [PATCH] Fix\n{head}")

    assert found.subject == "Fix"
    assert found.description == ("Why." if program == "multipart" else "")
    assert patched(found.changes[0], "a\nb\nd\n") == "a\nc = 'ü'\nd\n"


@pytest.mark.parametrize(
    "subject", ["=?no-such?q?Fix?=", "=?utf-8?b?!?=", "Fix\x01\x9f the\x85 lock", "=?utf-8?q?=ff?="]
)
def test_a_damaged_subject_is_one_line(subject: str) -> None:
    found = one(f"From: a@example.org\nSubject: {subject}\n\n{DIFF}")

    assert found.subject
    assert found.subject.isprintable()


def test_line_ends_and_a_byte_order_mark_are_of_the_file() -> None:
    for text in (MAIL.replace("\n", "\r\n"), f"\ufeff{MAIL}"):
        found = one(text)

        assert found.subject == "Hold the lock überall (#12345)"
        assert patched(found.changes[0], "a\nb\nd\n") == "a\nc\nd\n"


def test_commits_of_git(tmp_path: Path) -> None:
    """A file for each, a mailbox with a cover letter, and the same from a pipe."""
    need("git")
    git(tmp_path, "init", "-q")
    steps = ["a\nb\n", "a\nb\nc\n", "a\nx\nc\n"]
    messages = [
        "First",
        "Add a line, and say in more than one line of a mail why it is there (#77777)\n\nFrom here\non.",
        "[Bugfix] Ändern",
    ]
    for text, message in zip(steps, messages, strict=True):
        write(tmp_path, {"vllm/m.py": text, "tests/test_m.py": text})
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", message)
    git(tmp_path, "format-patch", "-q", "-o", "fix", "HEAD~2")
    box = git(tmp_path, "format-patch", "--stdout", "--cover-letter", "HEAD~2") + "\n"
    write(tmp_path, {"all.mbox": box})
    from_folder, from_box, from_pipe = read("fix"), read("all.mbox"), read("-", stdin=box)

    text = steps[0]
    for patch, after in zip(from_box, steps[1:], strict=True):
        text = patched(patch.changes[0], text)
        assert text == after
        assert patch.left_out == ("tests/test_m.py: not part of an installed vLLM",)
        assert git(tmp_path, "cat-file", "-t", patch.commit) == "commit"
    assert [patch.changes[0].hunks[0].old for patch in from_folder] == [
        patch.changes[0].hunks[0].old for patch in from_box
    ]
    assert from_pipe == from_box
    assert [patch.subject for patch in from_box] == [messages[1].partition("\n")[0], messages[2]]
    assert [patch.description for patch in from_box] == ["From here\non.", ""]
    assert from_box[0].upstream == ("vllm-project/vllm#77777",)
    assert [patch.name for patch in from_box] == [
        "add-a-line-and-say-in-more-than-one-line-of-a-mail-why-it-is",
        "bugfix-andern",
    ]


def test_a_mailbox_of_fifty() -> None:
    """Equal subjects get numbers; a reply without a diff is no patch."""
    reply = "From ann@example.org Tue Sep  1 10:00:00 2026\nSubject: Re: [PATCH] Hold\n\nFine.\n> --- a/vllm/m.py\n\n"
    write(Path(), {"all.mbox": (reply + MAIL) * 50})
    found = read("all.mbox")

    assert [patch.name for patch in found[:3]] == [
        "hold-the-lock-uberall",
        "hold-the-lock-uberall-2",
        "hold-the-lock-uberall-3",
    ]
    assert len({patch.name for patch in found}) == len(found) == 50
    lines = [patch.changes[0].hunks[0].line for patch in found]
    assert lines[0] == reply.count("\n") + MAIL[: MAIL.index("@@")].count("\n") + 1
    assert {b - a for a, b in pairwise(lines)} == {(reply + MAIL).count("\n")}


def test_a_mail_with_damage_names_the_line_of_the_file() -> None:
    write(Path(), {"all.mbox": MAIL + MAIL.replace("@@ -1,3", "@@ -1,5")})

    line = MAIL.count("\n") + MAIL[: MAIL.index("@@")].count("\n") + 1
    assert problem_of(read, "all.mbox").cause.startswith(f"line {line}: the hunk ")


def test_a_folder_is_read_in_the_order_of_names() -> None:
    write(
        Path("fix"),
        {"10-b.patch": DIFF, "02-a.diff": DIFF, "c.patch~": "", "notes.txt": "", ".d.patch": "", "e/f.patch": ""},
    )

    assert [patch.name for patch in read("fix")] == ["a", "b"]


def test_a_series_is_read_in_its_order() -> None:
    """As quilt does: comments, levels, folders; what is not listed is not read."""
    series = "# all\n\nsub/b.patch -p0 # why\na.patch -p 1\nc.patch -p1\n"
    tests = DIFF.replace("vllm/", "tests/")
    write(Path("fix"), {"series": series, "a.patch": DIFF, "sub/b.patch": DIFF, "c.patch": tests, "d.patch": ""})
    found = read("fix")

    assert [(patch.name, len(patch.changes)) for patch in found] == [("b", 1), ("a", 1), ("c", 0)]
    assert found[2].left_out == ("tests/m.py: not part of an installed vLLM",)


def test_patches_of_one_name_are_told_apart() -> None:
    write(Path(), {"one/fix.patch": DIFF, "two/fix.patch": DIFF, "two/fix-2.patch": DIFF})

    assert [patch.name for patch in read("one", "two")] == ["fix", "fix-2", "fix-3"]


@pytest.mark.parametrize(
    ("file", "subject", "name"),
    [
        ("0003-fix-foo.patch", "", "fix-foo"),
        ("v2-0003-fix-foo.patch", "", "fix-foo"),
        ("03_Fix Foo.diff", "", "fix-foo"),
        ("pr12345-fix.patch", "", "fix"),
        ("0001-pr-12345_fix.patch", "", "fix"),
        ("pr12345.patch", "", "pr12345"),
        ("12345.diff", "", "pr12345"),
        ("12345.patch", "Fix foo (#12345)", "fix-foo"),
        ("0001.patch", "Fix foo", "fix-foo"),
        ("8bit.patch", "", "bit"),
        ("é.PATCH", "", "e"),
        ("", "[Bugfix] Don't fail", "bugfix-don-t-fail"),
        ("", "補丁", ""),
        ("補丁.patch", "", ""),
        ("x" * 99, "", "x" * 60),
    ],
)
def test_a_name(file: str, subject: str, name: str) -> None:
    assert name_of(file, subject) == name

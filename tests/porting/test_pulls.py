"""`vpatch import --pr`: a pull request of several commits becomes one patch file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from vpatch.net import session

from tests.conftest import Program, Trees
from tests.loopback import Quiet, listening
from tests.porting.making import ADDED, FILE, diff, text_of

MAIL = """\
From {number:040} Mon Sep 17 00:00:00 2001
From: Somebody <somebody@example.org>
Date: Tue, 24 Nov 2026 10:00:00 +0000
Subject: [PATCH {number}/2] {subject}

---
 a file | 1 +

"""
Answer = tuple[int, bytes, Mapping[str, str]]


class Pulls:
    """The server: an answer for each path, and the paths that were asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []


class Handler(Quiet):
    pulls: Pulls

    def do_GET(self) -> None:  # noqa: N802 - the library's name
        self.pulls.asked.append(self.path)
        self.send(*self.pulls.answers.get(self.path, (404, b"Not Found", {})))


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pulls]:
    monkeypatch.setattr(session, "BACKOFF", 0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    found = Pulls()
    with listening(Handler, pulls=found) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("VPATCH_PULLS", f"{found.url}/pull/")
        yield found


def mails(tree: Path, *subjects: str) -> bytes:
    """Return the patch of a pull request: its second commit builds on the first."""
    first = text_of(tree)
    second = first.replace(*ADDED, 1)
    third = second.replace("61", "62")
    texts = (diff(first, second), diff(second, third))
    return "".join(
        f"{MAIL.format(number=number, subject=subject)}{text}-- \n2.50\n\n"
        for number, (subject, text) in enumerate(zip(subjects, texts, strict=False), 1)
    ).encode()


@pytest.mark.parametrize(
    ("subjects", "name"),
    [(("Name the layers (#99999)", "Review"), "name-the-layers"), (("层", "Review"), "pr123"), (("层",), "pr123")],
)
def test_a_pull_request_becomes_one_patch_file(
    subjects: tuple[str, ...], name: str, here: Path, pristine: Trees, pulls: Pulls, vpatch: Program
) -> None:
    pulls.answers["/pull/123.patch"] = (302, b"", {"Location": "/raw/123"})
    pulls.answers["/raw/123"] = (200, mails(pristine("0.20.2"), *subjects), {"Content-Type": "text/plain"})

    made = vpatch("import", "--pr", "123", "--base", pristine("0.20.2"))

    assert made.code == 0, made.err
    text = (here / f"patches/{name}.vpatch").read_text()
    assert f"+LAYERS = {60 + len(subjects)}\n" in text
    assert "\nUpstream: vllm-project/vllm#123" in text
    assert pulls.asked == ["/pull/123.patch", "/raw/123"]


BAD: Mapping[str, tuple[Answer, str]] = {
    "missing": ((404, b"Not Found", {}), "cannot fetch: {url}: the server answers 404 not found\n"),
    "broken": ((500, b"", {}), "cannot fetch: {url}: the server answers 500 internal server error\n"),
    "a page": (
        (200, b"\n<!DOCTYPE html><title>Sign in</title>", {}),
        "cannot import: pull request 7: the server answers with a page for browsers, not with a patch\n",
    ),
    "empty": ((200, b"", {}), "cannot import: pull request 7: it is empty\n"),
    "text": ((200, b"patience\n", {}), "cannot import: pull request 7: it has no diff\n"),
    "no text": ((200, b"\0\n", {}), "cannot import: pull request 7: line 1: it has a null byte, and is no text\n"),
    "too large": (
        (200, b"#" * (11 << 20), {"Content-Length": str(100 << 20)}),
        "cannot fetch: {url}: it has more than 10 MiB\n",
    ),
    "a file": (
        (302, b"", {"Location": "file:///etc/passwd"}),
        "cannot fetch: {url}: it redirects to 'file:///etc/passwd', which is no address of the web\n",
    ),
    "tests alone": (
        (200, diff("a\n", "b\n", "tests/test_x.py").encode(), {}),
        "cannot import: pull request 7: it changes no module of vLLM: tests/test_x.py: not part of an installed vLLM\n",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_one_sentence(name: str, here: Path, pulls: Pulls, vpatch: Program) -> None:
    pulls.answers["/pull/7.patch"], says = BAD[name]

    refused = vpatch("import", "--pr", "7", "--base", "0.20.2")

    assert (refused.code, refused.err) == (1, says.format(url=f"{pulls.url}/pull/7.patch"))
    assert not (here / "patches").exists()


@pytest.mark.parametrize("address", ["github.com/vllm-project/vllm/pull", "file:///etc", "http://[", "https://"])
def test_a_bad_address(address: str, here: Path, vpatch: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VPATCH_PULLS", address)

    refused = vpatch("import", "--pr", "7")

    assert refused.code == 1
    assert refused.err.startswith(f"bad VPATCH_PULLS: {address}: it is no address of the web; such as https://")


def test_no_server(here: Path, vpatch: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "BACKOFF", 0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with listening(Quiet) as server:
        address = f"http://user:secret@127.0.0.1:{server.server_port}"
    monkeypatch.setenv("VPATCH_PULLS", address)

    refused = vpatch("import", "--pr", "7")

    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert refused.err.startswith("cannot fetch: http://127.0.0.1:")
    assert "secret" not in refused.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--pr", "0"), "--pr"),
        (("--pr", "1", "fix.diff"), "--pr takes no SOURCE"),
        (("--pr", "1", "--git", "."), "--pr and --git are two sources: give one"),
        (("--run", "true", "--as", FILE), "--as and --run are two sources: give one"),
        (("--run", "true", "fix.diff"), "--run takes no SOURCE"),
        (("--git", "."), "--git takes one range as SOURCE"),
        (("--git", ".", "a..b", "c..d"), "--git takes one range as SOURCE"),
        (("--git", "", "a..b"), "--git is empty"),
    ],
)
def test_usage(arguments: tuple[str, ...], says: str, here: Path, vpatch: Program) -> None:
    ran = vpatch("import", *arguments)

    assert ran.code == 2
    assert says in ran.err

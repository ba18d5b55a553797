"""Pages of an index that are made to cost memory or time, and odd ones that are read all the same."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from contextlib import suppress

import pytest
from vpatch.errors import Failure
from vpatch.release.index import find_wheel, listings
from vpatch.release.page import Listed, read_page

from tests.loopback import NAME, IndexServer
from tests.tiers import deep

URL = "https://index.example/simple/vllm/"
HTML, JSON = "text/html; charset=utf-8", "application/vnd.pypi.simple.v1+json"
SHA = "a" * 64

LINKS = {
    f'<a href="../../w/{NAME}#sha256={SHA}" data-requires-python="&gt;=3.9">{NAME}</a>': (f"/w/{NAME}", SHA, False),
    f"<A data-yanked HREF = 'x.whl?a=1&amp;b=2#md5=1' ><b>{NAME}</b>\n</A>": ("/simple/vllm/x.whl?a=1&b=2", None, True),
    f'<base href="/o/"><a data-requires-python=">=3.9" href=w#sha256={SHA}>{NAME}': ("/o/w", SHA, False),
    f'<!-- <a href="x">{NAME}</a> --><a name="x">{NAME}</a><a href="x">{NAME}</a>': ("/simple/vllm/x", None, False),
}


@pytest.mark.parametrize("page", LINKS)
def test_links_as_indexes_write_them(page: str) -> None:
    path, sha256, yanked = LINKS[page]

    expected = Listed(NAME, f"https://index.example{path}", sha256, yanked=yanked)
    assert list(read_page(page.encode(), HTML, URL)) == [expected]


@pytest.mark.parametrize("yanked", [True, False, "", "bad"])
def test_a_page_of_json(yanked: object) -> None:
    file = {"filename": NAME, "url": "x.whl#y", "hashes": {"sha256": SHA}, "yanked": yanked, "size": 1}
    page = {"meta": {"api-version": "1.4"}, "name": "vllm", "files": [file]}

    found = list(read_page(json.dumps(page).encode(), JSON, URL))
    assert found == [Listed(NAME, f"{URL}x.whl", SHA, yanked=yanked is not False)]


NAMES = {
    "tags": "vllm-2.0-" + "-".join([".".join(f"{letter}{n}" for n in range(200)) for letter in "abc"]) + ".whl",
    "shorter tags": f"vllm-2.0-{'.'.join('a' * 40)}-{'.'.join('b' * 40)}-{'.'.join('c' * 40)}.whl",
    "parts": "vllm-2.0" + "-1" * 3000 + ".whl",
    "dashes": "vllm-2.0-" + "-" * 3000 + ".whl!",
    "no wheel": "vllm-" + "1." * 3000 + ".tar.gz!",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_costs_no_more_than_its_length(index: IndexServer, name: str) -> None:
    """200 interpreters, ABIs and platforms are 8 million tags."""
    index.publish(NAMES[name])
    tracemalloc.start()
    began = time.process_time()
    try:
        (offers,) = listings()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert str(find_wheel("1.0").version) == "1.0"
    assert "1.0" in map(str, offers)
    assert peak < 4 << 20
    assert time.process_time() - began < 2


# Each makes html.parser, or a search for a link's end, take a time that grows with the square of the page.
REPEATED = (
    *("<!--", "<![CDATA[", "<a href=x>", "<a ", "<", "&", "&#", "<?", "</a", '<a a="', "<a a='<a a=\"", "<!x", "<a>"),
    *("<script>", "<b>", "</", '<a href="', "<a  ", "<a\t=", "<a href", "<a a=b/", "<base href=x>", "<meta ", "--"),
)
HEADS = ("", "<a", "<a href=x>", "<a href='")


@pytest.mark.parametrize("head", [HEADS[0], *map(deep, HEADS[1:])])
def test_a_page_costs_no_more_than_its_length(head: str) -> None:
    for piece in REPEATED:
        page = (head + piece * (50_000 // len(piece))).encode()
        began = time.process_time()
        with suppress(ValueError):
            assert len(list(read_page(page, HTML, URL))) <= len(page) // len("<a href>")

        assert time.process_time() - began < 0.5, piece


ODD = (
    *("null", "[]", "{}", "1e999", "9" * 5000, '"', "\\ud800", "<", ">", "\0", "-" * 3000, "[" * 70, "&#x110000;", "1"),
)


def changed(draw: random.Random, text: str) -> str:
    """Cut a text off, repeat a piece of it, or replace one."""
    at = draw.randrange(len(text))
    match draw.randrange(3):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + text[at : at + 9] * draw.choice((2, 50, 20_000)) + text[at + 9 :]
    return text[:at] + draw.choice(ODD) + text[at + draw.randrange(12) :]


@pytest.mark.parametrize("seed", [*range(3), *map(deep, range(3, 60))])
def test_pages_at_random(index: IndexServer, seed: int) -> None:
    """Each is read, or is refused in one line."""
    draw = random.Random(seed)  # noqa: S311 - for a test
    for _ in range(5):
        kind = draw.choice((HTML, JSON))
        link = f'<a href="../w/{NAME}#sha256={SHA}" data-yanked="">{NAME}</a>'
        file = {"filename": NAME, "url": "x", "hashes": {"sha256": SHA}, "yanked": "no"}
        text = link * 3 if kind == HTML else json.dumps({"meta": {"api-version": "1.0"}, "name": "x", "files": [file]})
        for _ in range(draw.randrange(1, 4)):
            text = changed(draw, text) or " "
        index.custom = (kind, text.encode("utf-8", "replace"))
        began = time.process_time()
        with suppress(Failure):
            tuple(listings())
        assert time.process_time() - began < 2

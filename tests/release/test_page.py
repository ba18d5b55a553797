"""Pages of an index that are made to cost memory or time, and odd ones that are read all the same."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest
from vpatch.errors import Failure
from vpatch.release.index import find_wheel, listings
from vpatch.release.page import Listed, read_page

from tests.failures import problem_of
from tests.loopback import NAME, X86, IndexServer
from tests.tiers import deep

URL = "https://index.example/simple/vllm/"
HTML, JSON = "text/html; charset=utf-8", "application/vnd.pypi.simple.v1+json"
SHA = "a" * 64


def listed(*links: str) -> list[Listed]:
    return list(read_page("".join(links).encode(), HTML, URL))


@pytest.mark.parametrize(
    "name",
    [
        "vllm-2.0-" + "-".join([".".join(f"{letter}{n}" for n in range(200)) for letter in "abc"]) + ".whl",
        f"vllm-2.0-{'.'.join('a' * 40)}-{'.'.join('b' * 40)}-{'.'.join('c' * 40)}.whl",
        "vllm-2.0" + "-1" * 3000 + ".whl",
        "vllm-2.0-" + "-" * 3000 + ".whl!",
        "vllm-" + "1." * 3000 + ".tar.gz!",
    ],
    ids=["tags", "shorter tags", "parts", "dashes", "no wheel"],
)
@pytest.mark.parametrize("page", ["html", "json"])
def test_a_name_costs_no_more_than_its_length(index: IndexServer, page: str, name: str) -> None:
    """200 interpreters, ABIs and platforms are 8 million tags."""
    index.page = page
    index.publish(name)
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
    *(
        "<script>",
        "<b>",
        "</",
        '<a href="',
        "<a  ",
        "<a\t=",
        "<a href",
        "<a a=b/",
        "<base href=x>",
        "<meta ",
        "--",
        "<a/",
    ),
)


@pytest.mark.parametrize("piece", REPEATED)
@pytest.mark.parametrize("head", ["", "<a", "<a href=x>", "<a href='"])
def test_a_page_costs_no_more_than_its_length(piece: str, head: str) -> None:
    page = (head + piece * (100_000 // len(piece))).encode()
    began = time.process_time()
    with suppress(ValueError):
        assert len(list(read_page(page, HTML, URL))) <= len(page) // len("<a href>")

    assert time.process_time() - began < 2


def test_more_files_than_a_project_has(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vpatch.net.session.LIMITS.listed", 3)
    for minor in range(3):
        index.publish(f"vllm-2.{minor}-{X86}")

    line = str(problem_of(find_wheel, "1.0"))
    assert line == f"package index failed: {index.url}/simple/: it lists more than 3 files"


def test_links_as_indexes_write_them() -> None:
    (one,) = listed(f'<a href="../../w/{NAME}#sha256={SHA}" data-requires-python="&gt;=3.9">{NAME}</a>')
    assert one == Listed(NAME, f"https://index.example/w/{NAME}", SHA, yanked=False)
    (one,) = listed(f"<A data-yanked HREF = 'x.whl?a=1&amp;b=2#md5=1' ><b>{NAME}</b>\n</A>")
    assert one == Listed(NAME, f"{URL}x.whl?a=1&b=2", None, yanked=True)
    (one,) = listed('<base href="/other/">', f'<a data-requires-python=">=3.9" href=w#sha256={SHA}>', NAME)
    assert one == Listed(NAME, "https://index.example/other/w", SHA, yanked=False)
    assert listed(f'<!-- <a href="x">{NAME}</a> -->', f'<a name="x">{NAME}</a>', '<a href="x">other</a>')[1:] == []


@pytest.mark.parametrize("yanked", [True, False, "", "bad"])
def test_a_page_of_json(yanked: object) -> None:
    file = {"filename": NAME, "url": "x.whl#y", "hashes": {"sha256": SHA}, "yanked": yanked, "size": 1}
    page = {"meta": {"api-version": "1.4"}, "name": "vllm", "files": [file]}

    found = list(read_page(json.dumps(page).encode(), JSON, URL))
    assert found == [Listed(NAME, f"{URL}x.whl", SHA, yanked=yanked is not False)]


Mutation = Callable[[random.Random, str], str]


def _cut(draw: random.Random, text: str) -> str:
    return text[: draw.randrange(len(text))]


def _doubled(draw: random.Random, text: str) -> str:
    at = draw.randrange(len(text))
    return text[:at] + text[at : at + 9] * draw.choice((2, 50, 20_000)) + text[at + 9 :]


def _replaced(draw: random.Random, text: str) -> str:
    at = draw.randrange(len(text))
    odd = (
        "null",
        "[]",
        "{}",
        "1e999",
        "9" * 5000,
        '"',
        "\\ud800",
        "<",
        ">",
        "\0",
        "-" * 3000,
        "[" * 70,
        "&#x110000;",
        "1",
    )
    return text[:at] + draw.choice(odd) + text[at + draw.randrange(12) :]


@pytest.mark.parametrize("seed", [*range(8), *(deep(seed) for seed in range(8, 200))])
def test_pages_at_random(index: IndexServer, seed: int) -> None:
    """Each is read, or is refused in one line."""
    draw = random.Random(seed)  # noqa: S311 - for a test
    for _ in range(5):
        kind = draw.choice((HTML, JSON))
        link = f'<a href="../w/{NAME}#sha256={SHA}" data-yanked="">{NAME}</a>'
        file = {"filename": NAME, "url": "x", "hashes": {"sha256": SHA}, "yanked": "no"}
        text = link * 3 if kind == HTML else json.dumps({"meta": {"api-version": "1.0"}, "name": "x", "files": [file]})
        for _ in range(draw.randrange(1, 4)):
            text = draw.choice((_cut, _doubled, _replaced))(draw, text) or " "
        index.custom = (kind, text.encode("utf-8", "replace"))
        began = time.process_time()
        with suppress(Failure):
            tuple(listings())
        assert time.process_time() - began < 2

"""The site in a browser: for a keyboard and a screen reader, light and dark, wide and narrow, and without a network."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe, AxeResults  # type: ignore[import-untyped]
from playwright.sync_api import Browser, FloatRect, Locator, Page
from vpatch.core.catalogue import discover
from vpatch.known.elsewhere import ELSEWHERE

from tests.docs.first_screen import SCREENS, Files, screen, served
from tests.loopback import listening
from tests.matrix.browser import HEIGHT, chromium, window
from tests.needs import need
from tests.paths import ROOT
from tests.recording import path
from tests.releases import FACTS
from tests.tiers import sampled

pytestmark = pytest.mark.deep

WRITTEN = (path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md"))
REPORTS = ("decode/", "index")  # of runs, which are not published; and the home
GENERATED = (
    "overlays",
    "command-line",
    "errors",
    "python-api",
    *(f"overlays/{item.id}" for item in discover() if item.id in FACTS),
)
PAGES = ["", "404.html", *sorted(f"{page}/" for page in (*WRITTEN, *GENERATED) if not page.startswith(REPORTS))]
FIRST = ("", "overlays/turboquant-hybrid/")
WINDOWS = [(width, dark) for width in (1280, 400) for dark in (False, True)]
SIDEWAYS = "document.documentElement.scrollWidth - innerWidth"
BRIEF = {"resultTypes": ["violations"]}  # of the rest, which takes seconds, axe then says little

Show = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    need("chromium")
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with listening(Files, folder=str(site.parent)) as server:
        yield f"http://127.0.0.1:{server.server_port}/{site.name}/"


@pytest.fixture
def show(address: str, browser: Browser) -> Iterator[Show]:
    """`show("images/", 400, dark=True)`: a page in a window of that width. All that it asks for is on the site."""
    asked: list[str] = []
    with ExitStack() as opened:

        def give(name: str, width: int = 1280, *, dark: bool = False) -> Page:
            page = opened.enter_context(window(browser, width, dark=dark))
            page.on("request", lambda request: asked.append(request.url))
            page.set_default_timeout(10_000)
            page.goto(address + name)
            page.wait_for_load_state("networkidle")
            return page

        yield give
    assert asked
    assert not [url for url in asked if not url.startswith(address)]


def axe(page: Page) -> AxeResults:
    return Axe().run(page, options=BRIEF)


def test_the_pages_are_those_of_the_site(site: Path) -> None:
    built = [path.relative_to(site).as_posix().removesuffix("index.html") for path in site.rglob("*.html")]

    assert sorted(built) == sorted(PAGES)


@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [
        *((name, *window) for name in FIRST for window in WINDOWS),
        # An odd step: a sample has each window.
        *sampled([(name, *window) for name in PAGES if name not in FIRST for window in WINDOWS], 9),
    ],
)
def test_axe_finds_nothing(show: Show, width: int, name: str, *, dark: bool) -> None:
    page = show(name, width, dark=dark)
    found = axe(page)

    assert page.evaluate("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
    assert page.evaluate(SIDEWAYS) <= 0
    assert not found.violations_count, found.generate_report()


def test_axe_finds_nothing_in_what_opens(show: Show) -> None:
    """The results of a search, and on a narrow screen the navigation."""
    wide, narrow = show(""), show("python-api/", 400, dark=True)
    wide.get_by_role("textbox", name="Search").click()
    wide.keyboard.type("sliding_window")
    wide.locator(".md-search-result__link").first.wait_for()
    narrow.locator("label.md-header__button[for=__drawer]").click()
    narrow.wait_for_function("document.querySelector('.md-sidebar--primary').getBoundingClientRect().left === 0")

    for page in (wide, narrow):
        found = axe(page)
        assert not found.violations_count, found.generate_report()


INSTALL = "uv tool install git+https://github.com/vpatch/vpatch"


@pytest.fixture(scope="module")
def first(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(site, tmp_path_factory.mktemp("first") / "served") as address:
        yield address


@pytest.mark.parametrize(("name", "dark"), SCREENS)
def test_the_first_screen_has_the_command_and_a_result(browser: Browser, first: str, name: str, *, dark: bool) -> None:
    """Within 1,280 by 800 pixels, whole: nothing scrolls sideways to be read."""
    with screen(browser, first, name, dark=dark) as page:
        blocks = [
            page.locator("pre", has_text=text).first for text in (INSTALL, "ready to apply")[: 1 + (name == "readme")]
        ]
        bottoms = [edges(block)["y"] + edges(block)["height"] for block in blocks]
        if name == "home":
            (picture,) = (one for one in page.locator("img[alt^='A terminal']").all() if one.is_visible())
            bottoms.append(edges(picture)["y"] + down_to_a_result(dark=dark) * edges(picture)["width"])
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")

        assert max(bottoms) < HEIGHT
        assert all(block.evaluate("one => one.scrollWidth <= one.clientWidth") for block in blocks)
        assert page.evaluate(SIDEWAYS) <= 0
        assert (sum(map(int, re.findall(r"\d+", back)[:3])) < 384) is dark


def edges(shown: Locator) -> FloatRect:
    box = shown.bounding_box()
    assert box
    return box


def down_to_a_result(*, dark: bool) -> float:
    """Return how far down a recording has its first overlay that is ready to apply, in widths of the recording."""
    svg = path("dark" if dark else "light").read_text()
    found = re.search(r'viewBox="0 0 ([\d.]+) .*?translate\(9, (\d+)\).*? y="([\d.]+)"[^>]*>pending<', svg, re.DOTALL)
    assert found
    width, frame, line = map(float, found.groups())
    return (frame + line) / width


def test_the_search_finds_an_error_message_without_a_network(show: Show) -> None:
    page = show("")
    page.get_by_role("textbox", name="Search").click()
    page.keyboard.type("Workspace growth is not allowed")
    results = page.locator(".md-search-result__link")
    results.first.wait_for()

    assert any("/overlays/turboquant-workspace/" in (link.get_attribute("href") or "") for link in results.all())


ERRORS = {
    "lm_head.input_scale": "lm_head.input_scale",
    **{line: line for one in ELSEWHERE if one.named for line in one.lines},
    "cudaErrorLaunchFailure": "cudaErrorLaunchFailure",
    "unspecified launch failure": "unspecified launch failure",
    "Xid 13": "Xid",
    "Xid 31": "Xid",
    "illegal memory access": "illegal memory access",
    "cudaErrorIllegalAddress": "cudaErrorIllegalAddress",
    "device-side assert": "device-side assert",
    "operation not permitted when stream is capturing": "operation not permitted",
    "EngineDeadError": "EngineDeadError",
    "No available memory for the cache blocks": "No available memory",
    "page size of the layer is not divisible": "page size of the layer",
    "!!!!": "Answers are garbage",
    "tool calls leak into the text": "Tool calls leak",
    "acceptance falls": "acceptance rate falls",
    "Workspace growth is not allowed": "Workspace is locked",
    "TurboQuant KV cache is not supported for hybrid": "TurboQuant KV cache is not supported",
    "Unknown SF transformation": "Unknown SF transformation",
    "Promotion for Float8 Types is not supported": "Promotion for Float8 Types",
    "invalid literal for int() with base 10: 'sliding_window'": "sliding_window",
    "Unknown TurboQuant cache dtype: 'auto'": "Unknown TurboQuant cache dtype",
}
"""What users search for, and words of the heading that comes first."""


def test_the_search_leads_to_each_error_line_first(show: Show, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints what came first for each: the page, and the section in it."""
    page, first = show(""), dict[str, list[tuple[str, str]]]()
    box, results = page.get_by_role("textbox", name="Search"), page.locator(".md-search-result__item")
    box.click()
    for text in ("Workspace growth is not allowed", *ERRORS):
        box.fill(text)
        box.press("End")
        page.wait_for_timeout(600)  # the search waits for the end of typing
        results.first.wait_for()
        links = results.first.locator("a").all()
        first[text] = [(link.get_attribute("href") or "", link.inner_text().split("\n")[0]) for link in links[:2]]
    with capsys.disabled():
        for text, found in first.items():
            sys.stdout.write(f"{text:56} {found[-1][1]}\n")

    wrong = {text: first[text] for text, words in ERRORS.items() if words not in first[text][-1][1]}
    assert not wrong
    assert all("/errors/" in found[0][0] for found in first.values())


def test_a_wide_table_scrolls_in_its_place_by_keyboard(show: Show) -> None:
    page = show("validation/", 400)
    wide = page.locator(".scroll").filter(has=page.get_by_role("columnheader", name="measured"))
    wide.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")

    page.wait_for_function("document.activeElement.scrollLeft > 50")
    assert page.evaluate(SIDEWAYS) <= 0

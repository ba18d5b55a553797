"""The site in a browser: for a keyboard and a screen reader, light and dark, wide and narrow, and without a network."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page
from vpatch.known.elsewhere import ELSEWHERE

from tests.loopback import listening
from tests.matrix.browser import chromium, window
from tests.needs import need
from tests.paths import ROOT
from tests.tiers import sampled

pytestmark = pytest.mark.deep

FIRST = ("", "overlays/turboquant-hybrid/")
WRITTEN = (path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md"))
REPORTS = "decode/"  # of runs, which are not published
OTHERS = sorted(
    {"overlays/", "command-line/", "errors/", *(f"{page}/" for page in WRITTEN if not f"{page}".startswith(REPORTS))}
)
WINDOWS = ((1280, False), (400, True))
SIDEWAYS = "document.documentElement.scrollWidth - innerWidth"

Show = Callable[..., Page]


class Files(SimpleHTTPRequestHandler):
    """Serves the files of a folder."""

    folder: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, directory=self.folder, **kwargs)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


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


@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [
        *((name, *window) for name in FIRST for window in WINDOWS),
        *((name, *WINDOWS[at % 2]) for at, name in enumerate(sampled([*OTHERS], 5)) if name != "index/"),
    ],
)
def test_axe_finds_nothing(show: Show, width: int, name: str, *, dark: bool) -> None:
    page = show(name, width, dark=dark)
    found = Axe().run(page)

    assert page.evaluate("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
    assert page.evaluate(SIDEWAYS) <= 0
    assert not found.violations_count, found.generate_report()


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

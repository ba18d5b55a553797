"""The page of the matrix in a browser: by keyboard, to a screen reader, narrow, dark, in print, without script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page
from vpatch.core.verdict import State
from vpatch.matrix.verdicts import Cell, Matrix, Row

from tests.matrix.browser import chromium, window
from tests.matrix.pages import HOSTILE, every_kind, html, saying, wide
from tests.needs import need
from tests.tiers import whole

WIDTHS = (1280, 400)
FOCUSED = """() => {
  const focused = document.activeElement, {left, right, top, bottom} = focused.getBoundingClientRect()
  const {outlineStyle, outlineWidth} = getComputedStyle(focused)
  const seen = focused.contains(document.elementFromPoint((left + right) / 2, (top + bottom) / 2))
  return {id: focused.id, outline: `${outlineStyle} ${outlineWidth}`, seen, left, right, top, bottom}
}"""
OPEN = """() => {
  const open = document.querySelector(":popover-open"), {left, right, top, bottom} = open.getBoundingClientRect()
  const links = [...open.querySelectorAll("a")].map(link => link.href)
  return {id: open.id, text: open.innerText, links, left, right, top, bottom}
}"""
SCROLLED = """async () => {
  const region = document.querySelector(".scroll")
  for (let frame = 0; frame < 300 && region.scrollLeft < 100; frame++) await new Promise(requestAnimationFrame)
  return region.scrollLeft
}"""
SIDEWAYS = "document.documentElement.scrollWidth - innerWidth"

Show = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    need("chromium")
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return every_kind()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, matrix: Matrix) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {"all": matrix, "wide": wide(), "hostile": saying(HOSTILE)}
    for name, one in made.items():
        (folder / f"{name}.html").write_text(html(one), "utf-8")
    return {name: folder / f"{name}.html" for name in made}


@pytest.fixture
def show(browser: Browser, files: dict[str, Path]) -> Iterator[Show]:
    """`show(400, dark=True)`: the page in a window of that width."""
    with ExitStack() as opened:

        def give(width: int, name: str = "all", *, dark: bool = False, script: bool = True) -> Page:
            page = opened.enter_context(window(browser, width, dark=dark, script=script))
            page.set_default_timeout(5000)
            page.goto(files[name].as_uri())
            return page

        yield give


def cells(matrix: Matrix) -> Iterator[tuple[str, Row, Cell]]:
    """Yield every cell with its id on the page, in the order of the page."""
    for number, row in enumerate(reversed(matrix.rows)):
        for column, cell in enumerate(row.cells):
            yield f"cell-{number}-{column}", row, cell


def plain(text: str) -> str:
    """Remove what the page shows in another way: spaces, and the backticks of code."""
    return re.sub(r"[\s`]+", "", text)


def reason(cell: Cell) -> Iterator[str]:
    """Return the text that a cell's reason must have."""
    yield cell.verdict.id
    yield from map(str, cell.problems)
    for part in cell.verdict.parts:
        yield part.name
        yield part.state.replace("_", " ")
        yield from part.files
        yield from [] if part.problems else [part.because]
        yield from [f"shape {part.shape}"] if part.shape else []


def open_by_keyboard(page: Page, cell: str) -> Any:
    """Press a cell; return the text, the links and the place of its reason."""
    page.locator(f"#{cell}").press("Enter")
    return page.evaluate(OPEN)


def test_the_page(show: Show, matrix: Matrix, files: dict[str, Path]) -> None:
    """Every cell says what it is, its reason opens by keyboard, and nothing is fetched or run."""
    page = show(1280)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    tree = page.locator("table").aria_snapshot()
    assert page.locator(".cell").count() == len(matrix.overlays) * 9
    for name, row, cell in cells(matrix):
        seen = cell.verdict.state.replace("_", " ")
        where = row.name if row.name.startswith("vllm") else f"vLLM {row.name}"
        label = f"{seen}{' (n/a)' if 'not' in seen else ''}: {cell.verdict.id} on {where}"
        urgent = cell.problems or cell.verdict.state in {State.DRIFTED, State.CONFLICT}
        assert f'button "{label}{", a person must look" if urgent else ""}"' in tree, name
    name, row, cell = next(cells(matrix))
    opened = open_by_keyboard(page, name)
    for text in (row.name, *reason(cell)):
        assert plain(text) in plain(opened["text"])
    page.keyboard.press("Escape")
    assert page.evaluate(FOCUSED)["id"] == name
    assert asked == [files["all"].as_uri()]

    hostile = show(400, "hostile")
    dialogs: list[str] = []
    hostile.on("dialog", lambda dialog: dialogs.append(dialog.message))
    hostile.reload()
    text = open_by_keyboard(hostile, "cell-1-0")["text"]
    assert plain(text).count(plain(HOSTILE)) > 5
    assert not dialogs


def rarely(test: Callable[..., None]) -> Callable[..., None]:
    """Leave a test to the weekly run: it shows what only the template and the styles decide."""
    marked: Callable[..., None] = whole(pytest.mark.deep(test))
    return marked


@rarely
@pytest.mark.parametrize("width", WIDTHS)
def test_tab_reaches_every_cell(show: Show, matrix: Matrix, width: int) -> None:
    page = show(width)
    reached: list[str] = []
    for _ in range(page.locator("a:visible, button:visible, [tabindex]:visible").count()):
        page.keyboard.press("Tab")
        found = page.evaluate(FOCUSED)
        assert found["outline"] == "solid 2px", found
        assert 0 <= found["left"] < found["right"] <= width, found
        assert not found["id"] or (0 <= found["top"] < found["bottom"] <= 800 and found["seen"]), found
        reached.append(found["id"])

    assert [name for name in reached if name.startswith("cell-")] == [name for name, _, _ in cells(matrix)]
    assert [name for name in reached if name.startswith("row-")] == [f"row-{n}" for n in range(len(matrix.rows))]


@rarely
def test_the_table_is_one_to_a_screen_reader(show: Show, matrix: Matrix) -> None:
    page = show(1280)
    names = [f"{item.id}{' (opt-in)' if item.overlay.opt_in else ''}" for item in matrix.overlays]

    assert page.get_by_role("columnheader").all_inner_texts() == ["vLLM", *names]
    assert page.get_by_role("rowheader").all_inner_texts() == [row.name for row in reversed(matrix.rows)]
    assert page.get_by_role("table", name="vLLMs, newest first, and the overlays").count() == 1
    assert page.get_by_role("cell", name="could not be read: wrong bytes: vllm-0.21.1.whl").count() == 1
    for name, _, cell in cells(matrix):
        button = page.locator(f"#{name}")
        assert button.is_visible()
        assert button.inner_text().strip() == cell.verdict.state.replace("_", " ")
        assert button.evaluate("it => it.scrollWidth <= it.clientWidth && it.scrollHeight <= it.clientHeight")


@rarely
def test_enter_opens_what_is_behind_a_cell_a_row_and_a_column(show: Show, matrix: Matrix) -> None:
    page = show(1280)
    shared: dict[Cell, str] = {}
    for name, row, cell in cells(matrix):
        found = open_by_keyboard(page, name)
        for text in (row.name, *reason(cell)):
            assert plain(text) in plain(found["text"]), name
        item = next(item for item in matrix.overlays if item.id == cell.verdict.id)
        links = {f"https://github.com/{link.replace('#', '/pull/')}" for link in item.overlay.upstream}
        assert links <= {*found["links"]}
        assert shared.setdefault(cell, found["id"]) == found["id"]
        assert 0 <= found["left"] < found["right"] <= 1280
        assert 0 <= found["top"] < found["bottom"] <= 800
        page.keyboard.press("Escape")
        assert page.evaluate(FOCUSED)["id"] == name
        assert not page.locator(":popover-open").count()
    assert len(shared) == len({*shared.values()})

    for number, row in enumerate(reversed(matrix.rows)):
        opened = open_by_keyboard(page, f"row-{number}")["text"]
        assert (row.tree.origin if row.tree else str(row.problems[0])) in opened
        assert not row.tree or all(note in opened for note in row.tree.notes)
        page.keyboard.press("Escape")
    for number, item in enumerate(matrix.overlays):
        page.locator(f"[popovertarget=overlay-{number}]").first.press("Enter")
        text = plain(page.locator(f"#overlay-{number}").inner_text())
        assert plain(item.overlay.summary) in text
        assert plain(item.why) in text
        page.keyboard.press("Escape")


@rarely
def test_what_a_person_must_look_at_comes_first(show: Show, matrix: Matrix) -> None:
    page = show(1280)
    page.get_by_role("link", name="4 cells and 1 row need a person").click()
    look = page.get_by_role("region", name="A person must look")

    for row in matrix.rows:
        for problem in (*row.problems, *(one for cell in row.cells for one in cell.problems)):
            assert plain(str(problem)) in plain(look.inner_text())
    look.get_by_role("link", name="vLLM main").first.click()
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUSED)["id"] == "cell-0-1", "the one after the first that is drifted"


@pytest.mark.deep
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_and_nothing_scrolls_sideways(show: Show, matrix: Matrix, *, dark: bool) -> None:
    page, axe = show(1280, dark=dark), Axe()
    found = []
    for width in (320, *WIDTHS):
        page.set_viewport_size({"width": width, "height": 800})
        found.append(axe.run(page))
        assert not found[-1].response["incomplete"], "every contrast was measured"
    # A reason of each state, and what is behind the name of a row.
    for name in (*{cell.verdict.state: name for name, _, cell in cells(matrix)}.values(), "row-0"):
        open_by_keyboard(page, name)
        found.append(axe.run(page, ":popover-open"))
        page.keyboard.press("Escape")
    assert not [one.generate_report() for one in found if one.violations_count]

    for name in ("all", "wide", "hostile"):
        page = show(320, name, dark=dark)
        open_by_keyboard(page, "row-0")
        for width in (320, *WIDTHS, 800, 1920):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate(SIDEWAYS) <= 0, width


@rarely
def test_a_wide_table_scrolls_in_its_place_and_keeps_the_names_of_rows(show: Show) -> None:
    page = show(400, "wide")
    page.get_by_role("region", name="vLLMs, newest first").focus()
    assert page.evaluate(FOCUSED)["outline"] == "solid 2px"
    for _ in range(10):
        page.keyboard.press("ArrowRight")

    assert page.evaluate(SCROLLED) >= 100
    caption = page.locator("caption span").bounding_box()
    assert caption
    assert 0 <= caption["x"] < caption["x"] + caption["width"] <= 400
    assert 0 <= page.evaluate("document.querySelector('#row-0').getBoundingClientRect().left") < 20
    for width, name in ((400, "wide"), (1280, "all")):  # going back, nothing is behind names that stay in sight
        page = show(width, name)
        page.set_viewport_size({"width": width, "height": 300})
        page.locator(".cell").last.focus()
        for _ in range(page.locator(".cell").count()):
            page.keyboard.press("Shift+Tab")
            assert page.evaluate(FOCUSED)["seen"]


@rarely
def test_without_script_and_in_print_nothing_is_hidden(show: Show, matrix: Matrix) -> None:
    with_it, without = show(400), show(400, script=False)
    assert without.locator("body").inner_text() == with_it.locator("body").inner_text()
    without.locator("#cell-0-0").press("Enter")
    assert without.locator("article:visible").count() == 1

    page = show(800, dark=True)
    page.emulate_media(media="print", color_scheme="light")
    text = plain(page.locator("body").inner_text())
    assert page.locator("article:visible").count() == page.locator("article").count() > 30
    texts = (*(one for _, _, cell in cells(matrix) for one in reason(cell)), *(item.why for item in matrix.overlays))
    for one in (*texts, *(row.tree.origin for row in matrix.rows if row.tree)):
        assert plain(one) in text
    assert page.pdf().startswith(b"%PDF")

    opened = show(800)
    open_by_keyboard(opened, "cell-4-2")
    opened.emulate_media(media="print")
    below = "document.querySelector('footer').getBoundingClientRect().bottom"
    assert opened.evaluate(OPEN)["top"] >= opened.evaluate(below)

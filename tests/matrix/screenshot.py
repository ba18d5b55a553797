"""The picture of a page for the docs: `python -m tests.matrix.screenshot PAGE.html OUT.png`."""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Browser

from tests.matrix.browser import chromium

WIDTH = 1280  # pixels
CELL = ("turboquant-auto-dtype", "vLLM 0.28.0")  # one that upstream merged, with a link


def take(browser: Browser, page: Path, target: Path) -> None:
    """Write a picture of a whole page as it is in daylight, with the reason of one cell in front."""
    tab = browser.new_page(viewport={"width": WIDTH, "height": 800}, color_scheme="light")
    tab.goto(page.resolve().as_uri())
    tab.set_viewport_size({"width": WIDTH, "height": tab.evaluate("document.documentElement.scrollHeight")})
    cell = tab.locator(f'.cell[aria-label$="{" on ".join(CELL)}"]')
    if cell.count():
        cell.press("Enter")
    tab.screenshot(path=target)
    tab.close()


if __name__ == "__main__":
    with chromium() as browser:
        take(browser, Path(sys.argv[1]), Path(sys.argv[2]))

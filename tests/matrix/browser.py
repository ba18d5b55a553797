"""A headless Chromium, and the picture of a page for the docs: `python -m tests.matrix.browser PAGE.html OUT.png`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.needs import find

ARGUMENTS = [
    "--no-sandbox",  # tests run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTH, HEIGHT = 1280, 800  # pixels


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run this machine's browser; no other event loop may run in this thread."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find("chromium"), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def window(browser: Browser, width: int, *, dark: bool, script: bool = True) -> Iterator[Page]:
    """Open a window of that width, with or without JavaScript, for a user who prefers dark or light colors."""
    context = browser.new_context(
        viewport={"width": width, "height": HEIGHT},
        color_scheme="dark" if dark else "light",
        java_script_enabled=script,
    )
    try:
        yield context.new_page()
    finally:
        context.close()


CELL = ("turboquant-auto-dtype", "vLLM 0.28.0")  # one that upstream merged, with a link


def take(browser: Browser, page: Path, target: Path) -> None:
    """Write a picture of a whole page in light colors, with the reason of one cell open."""
    tab = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
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

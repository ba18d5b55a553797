"""What a reader sees first: README.md as GitHub lays it out, and the site's home, 1,280 by 800 pixels, light and dark.

`python -m tests.docs.first_screen FOLDER` builds the site and writes four pictures into the folder.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from markdown_it import MarkdownIt
from playwright.sync_api import Browser, Page

from tests.docs.conftest import mkdocs
from tests.loopback import listening
from tests.matrix.browser import WIDTH, chromium, window
from tests.paths import ROOT

STYLE = Path(__file__).with_name("github.css")
BADGE = re.compile(r'<img src="https://[^"]*" alt="([^"]*)" />')
QUALITY = 85  # of WebP, in percent
SCREENS = [(name, dark) for name in ("readme", "home") for dark in (False, True)]


class Files(SimpleHTTPRequestHandler):
    """Serves the files of a folder."""

    folder: str

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, directory=self.folder, **kwargs)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def served(site: Path, folder: Path) -> Iterator[str]:
    """Serve the site as `home/`, and README.md as `readme/`, by way of a new folder; yield the address."""
    (folder / "readme").mkdir(parents=True)
    (folder / "readme/index.html").write_text(readme(), "utf-8")
    (folder / "readme/docs").symlink_to(ROOT / "docs")
    (folder / "home").symlink_to(site)
    with listening(Files, folder=str(folder)) as server:
        yield f"http://127.0.0.1:{server.server_port}/"


def readme() -> str:
    """Return README.md as a page. A picture that another host would send is its text."""
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table").render((ROOT / "README.md").read_text("utf-8"))
    body = BADGE.sub(r'<span class="badge">\1</span>', markdown)
    head = f'<meta charset="utf-8"><title>README</title><style>{STYLE.read_text("utf-8")}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><main>{body}</main></body></html>'


@contextmanager
def screen(browser: Browser, address: str, name: str, *, dark: bool) -> Iterator[Page]:
    """Open a first screen, with its pictures."""
    with window(browser, WIDTH, dark=dark) as page:
        page.goto(f"{address}{name}/")
        page.wait_for_load_state("networkidle")
        page.wait_for_function("[...document.images].every(one => one.complete)")
        yield page


def write(folder: Path) -> None:
    """Build the site, and write `readme-light.webp` and the like."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as top, chromium() as browser:
        ran = mkdocs(ROOT / "mkdocs.yml", Path(top, "site"))
        if ran.returncode:
            raise SystemExit(ran.stderr)
        with served(Path(top, "site"), Path(top, "served")) as address:
            for name, dark in SCREENS:
                with screen(browser, address, name, dark=dark) as page:
                    session = page.context.new_cdp_session(page)  # playwright itself writes no WebP
                    taken = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
                (folder / f"{name}-{'dark' if dark else 'light'}.webp").write_bytes(base64.b64decode(taken["data"]))


if __name__ == "__main__":
    write(Path(sys.argv[1]))

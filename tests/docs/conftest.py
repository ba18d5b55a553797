"""The documentation's site, built once, and its pages as a browser gets them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.paths import CACHE, ROOT
from tests.processes import UNWATCHED

URLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
REPOSITORY: str = URLS["Issues"].removesuffix("/issues")
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
RELATED = {"canonical", "next", "prev"}  # relations of `<link>` that a browser does not load


def mkdocs(config: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Build a site as the workflow does: a warning, such as one of a broken link, fails."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "--site-dir", str(target)]
    fetched = {"XDG_CACHE_HOME": str(CACHE)}  # what the pages on overlays need of releases
    environment = {**fetched, **os.environ, **UNWATCHED, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement of the theme's
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site, with the name that it has where it is published. Do not modify it."""
    target: Path = tmp_path_factory.mktemp("pages") / REPOSITORY.rpartition("/")[2]
    ran = mkdocs(ROOT / "mkdocs.yml", target)
    assert ran.returncode == 0, ran.stderr
    return target


class Page(HTMLParser):
    """What a page loads, its links, and its text with single spaces."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(path.read_text())
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values and values.get("rel") not in RELATED:
            self.loads.append(values[LOADED[tag]])
        self.loads += [part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(site: Path, name: str) -> Page:
    """Read a page of the site by its address."""
    return Page(site / name / "index.html")

"""Relative links in the repository's documents: where each leads, as read on GitHub."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT

GIT = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
DOCUMENTS = sorted(subprocess.run(GIT, capture_output=True, text=True, check=True).stdout.split())

THEMES = {"only-light", "only-dark"}  # of a picture on the site


def links(text: str) -> list[tuple[str, str]]:
    """Return the relative links of a document: path, "" for the same document, and anchor."""
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)", prose)
    assert all(path or anchor for path, anchor in found)
    return found


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives a document's headings."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_to_something(document: str) -> None:
    source = ROOT / document
    for path, anchor in links(source.read_text()):
        target = (source.parent / path).resolve() if path else source
        assert target.exists(), path
        assert target.is_relative_to(ROOT), path
        known = THEMES if target.suffix == ".svg" else anchors(target.read_text()) if anchor else set()
        assert not anchor or anchor in known, f"{path}#{anchor}"


def test_links_are_found() -> None:
    text = "# One: two, three\n[a](b.md#c-d) `[e](f.md)`\n```sh\n# no heading\n[g](h.md)\n```\n![i](j.png) [k](https://l.org/)"

    assert links(text) == [("b.md", "c-d"), ("j.png", "")]
    assert anchors(text) == {"one-two-three"}
    assert len(DOCUMENTS) > 10
    assert Path("docs/images.md") in map(Path, DOCUMENTS)

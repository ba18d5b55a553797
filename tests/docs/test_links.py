"""Relative links in the repository's documents: where each leads, as read on GitHub."""

from __future__ import annotations

import re
import subprocess

from tests.paths import ROOT

GIT = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
THEMES = {"only-light", "only-dark"}  # of a picture on the site


def test_every_link_leads_to_something() -> None:
    documents = sorted(subprocess.run(GIT, capture_output=True, text=True, check=True).stdout.split())
    count = 0
    for source in (ROOT / document for document in documents):
        prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", source.read_text(), flags=re.MULTILINE | re.DOTALL)
        for path, anchor in re.findall(r"\]\(([^)\s#:]*)(?:#([^)\s]*))?\)", prose):
            target = (source.parent / path).resolve() if path else source
            where = f"{source.name}: {path}#{anchor}"
            assert path or anchor, where
            assert target.exists(), where
            assert target.is_relative_to(ROOT), where
            known = THEMES if target.suffix == ".svg" else anchors(target.read_text()) if anchor else set()
            assert not anchor or anchor in known, where
            count += 1
    assert count > 200


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives a document's headings."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

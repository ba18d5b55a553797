"""A hook of the site: links to files of the repository that the site does not have lead to the repository.

So the same link works on the site and where the repository is browsed. A link to nothing stays as it is, and mkdocs
reports it.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files, InclusionLevel
from mkdocs.structure.pages import Page

TARGET = re.compile(r"(?<=\]\()[^)\s#:]+(?=[#)])")

GENERATED = {
    "builder/vpatch/__init__.py": "python-api.md",
    "builder/vpatch/cli": "command-line.md",
    "patches/vpatch_overlays": "overlays/index.md",
}
"""Sources from which the other hooks generate pages: a link to one of these leads to its page."""


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the targets of links, relative to a page, that are not on the site."""
    if page.file.src_dir is None:  # generated: its links are those of the site
        return markdown
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir)
    here = Path(page.file.src_dir, page.file.src_uri).parent

    def on_site(found: re.Match[str]) -> str:
        path = Path(os.path.normpath(here / found[0]))
        if not path.is_relative_to(root) or not path.exists():
            return found[0]
        name = path.relative_to(root).as_posix()
        if name in GENERATED:
            return posixpath.relpath(GENERATED[name], posixpath.dirname(page.file.src_uri))
        file = files.get_file_from_path(path.relative_to(docs).as_posix()) if path.is_relative_to(docs) else None
        if file and file.inclusion is not InclusionLevel.EXCLUDED:
            return found[0]
        return f"{config.repo_url}/{'tree' if path.is_dir() else 'blob'}/main/{name}"

    return TARGET.sub(on_site, markdown)

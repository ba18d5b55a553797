"""A hook of the site: a page of the known error lines, with a heading for each, from the data of `vpatch find`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from vpatch.core.catalogue import discover
from vpatch.core.overlay import Catalogued
from vpatch.known.elsewhere import ELSEWHERE, Elsewhere
from vpatch.known.index import Index

OURS = tuple(item for item in discover() if item.origin.startswith("vpatch "))
TOP = """# Error lines

Paste the line into this command, and vpatch names the overlay or the cause. Paths, numbers, addresses and quotes do
not matter:

```sh
vpatch find "invalid literal for int() with base 10: 'sliding_window'"
vpatch doctor --log server.log
```

If nothing is known, the exit code is 1. `vpatch find` also takes [symptoms](overlays/index.md) in your own words.

"""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the page."""
    files.append(File.generated(config, "errors.md", content=TOP + "\n".join(page())))
    return files


def page() -> Iterator[str]:
    """Yield the sections: lines of overlays first."""
    index = Index(OURS)
    for line, source in index.lines:
        if source.overlay:
            yield from (f"## {heading(line.text)}", "", *of_overlay(source.overlay, source.part), "")
    for one in ELSEWHERE:
        perhaps = [of_possible(item, condition) for item, condition in index.possible.get(one, ())]
        yield from elsewhere(one, " ".join([one.advice, *perhaps]))


def heading(line: str) -> str:
    """Format a line as code."""
    return f"`{line}`"


def of_overlay(item: Catalogued, part: str) -> Iterator[str]:
    """Yield what mends a line."""
    name = f"[{item.id}](overlays/{item.id}.md){f', part `{part}`' if part else ''}"
    option = "--with" if item.overlay.opt_in else "--overlay"
    yield f"The overlay {name} mends it: {item.overlay.summary} `vpatch apply {option} {item.id}`"


def of_possible(item: Catalogued, condition: str) -> str:
    """Return under which condition an overlay mends a line that has many causes."""
    return f"The overlay [{item.id}](overlays/{item.id}.md) mends one of the causes: {condition.replace('<', '&lt;')}"


def elsewhere(one: Elsewhere, advice: str) -> Iterator[str]:
    """Yield a section for each line and symptom of a cause; the advice stands below each."""
    local = not one.link.startswith("https://")
    where = PurePosixPath(one.link).stem if local else one.link
    for line in one.lines:
        yield from (f"## {heading(line)}", "", advice, "", *one.seen, "", f"[{where}]({one.link})", "")
    for seen in one.seen if not one.lines else ():
        yield from (
            f"## {re.sub('[<>]', '', seen).removesuffix('.')}",
            "",
            advice,
            "",
            f"[{where}]({one.link})",
            "",
        )

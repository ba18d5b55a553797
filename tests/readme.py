"""README's table of overlays, written from what the overlays say of themselves: `python -m tests.readme`."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

from vpatch.catalogue import discover
from vpatch.model import Catalogued

README = Path(__file__).parents[1] / "README.md"
TABLE = re.compile(r"(?<=<!-- overlays -->\n).*?(?=<!-- /overlays -->)", re.DOTALL)


def table() -> str:
    """Give the table of our own overlays, in Markdown."""
    ours = (item for item in discover() if item.origin.startswith("vpatch "))
    return "\n".join(["| overlay | does | upstream | vLLM |", "|---|---|---|---|", *map(_row, ours), ""])


def _row(item: Catalogued) -> str:
    overlay = item.overlay
    links = (
        f"[{link.removeprefix('vllm-project/vllm')}](https://github.com/{link.replace('#', '/pull/')})"
        for link in overlay.upstream
    )
    ranges = groupby(overlay.releases.items(), key=lambda told: told[1].partition(":")[0])
    where = "; ".join(
        f"{state} {_whole([span for span, _ in told])}" for state, told in ranges if state != "not_applicable"
    )
    name = f"`{item.id}`{' (opt-in)' if overlay.opt_in else ''}"
    return f"| {name} | {overlay.summary.removesuffix('.')} | {', '.join(links)} | {where} |"


def _whole(spans: list[str]) -> str:
    """Give the range that adjacent ranges make together."""
    return ", ".join([*spans[0].split(",")[:1], *spans[-1].split(",")[1:]])


def fresh(text: str) -> str:
    """Give README's text with the table as it should be.

    Raises:
        ValueError: it has no place for a table, or several.
    """
    new, count = TABLE.subn(lambda _: table(), text)
    if count != 1:
        raise ValueError(f"README.md has {count} places for the table of overlays")
    return new


if __name__ == "__main__":
    README.write_text(fresh(README.read_text()))

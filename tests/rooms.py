"""`python -m tests.rooms` draws docs/rooms.svg: the rooms of `builder/vpatch`, by the levels in `test_imports.py`.

What stands in a box is the first line of the room's docstring.
"""

from __future__ import annotations

import ast
import textwrap
from html import escape

from tests.paths import ROOT
from tests.test_imports import LEVELS, TOOL

PICTURE = ROOT / "docs/rooms.svg"
WIDTH, GAP, HEAD, LINE, CHARACTER = 1100, 12, 30, 15, 7.5  # pixels
STYLE = (
    "text{font:12px sans-serif;fill:#333}.name{font:bold 14px monospace;fill:#111}"
    "rect{fill:#f6f8fa;stroke:#8c959f}.page{fill:#fff;stroke:none}"
)


def picture() -> str:
    """Return the drawing: a row for each level, the highest first, a box for each room that has a docstring."""
    y, boxes = GAP, []
    for level in reversed(LEVELS):
        rooms = {room: text for room in level if room != "__main__" and (text := described(room))}
        width = (WIDTH - GAP) // max(len(rooms), 1) - GAP
        texts = {room: textwrap.wrap(text, int((width - 20) / CHARACTER)) for room, text in rooms.items()}
        height = HEAD + LINE * max(map(len, texts.values()), default=0)
        for number, (room, lines) in enumerate(texts.items()):
            boxes += _box(room, lines, GAP + number * (width + GAP), y, width, height)
        y += height + GAP if rooms else 0
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img">'
    title = "<title>The rooms of vpatch: a module imports only from rooms in rows below its own</title>"
    page = f'<rect class="page" width="{WIDTH}" height="{y}"/>'
    return "\n".join([head, title, f"<style>{STYLE}</style>", page, *boxes, "</svg>\n"])


def described(room: str) -> str:
    """Return the first line of a room's docstring, "" if it is no room."""
    path = next((at for at in (TOOL / room / "__init__.py", TOOL / f"{room}.py") if at.exists()), None)
    text = path and ast.get_docstring(ast.parse(path.read_text()))
    return text.splitlines()[0] if text else ""


def _box(room: str, lines: list[str], x: int, y: int, width: int, height: int) -> list[str]:
    text = [
        f'<text x="{x + 10}" y="{y + 22 + LINE * at}">{escape(line, quote=False)}</text>'
        for at, line in enumerate(lines, 1)
    ]
    name = f'<text class="name" x="{x + 10}" y="{y + 19}">{escape(room)}</text>'
    return [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>', name, *text]


if __name__ == "__main__":
    PICTURE.write_text(picture())

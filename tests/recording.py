"""Record README's terminal: `python -m tests.recording` runs vpatch on a real vLLM and draws what it prints."""

from __future__ import annotations

import io
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tests.conftest import environment
from tests.paths import ROOT, link
from tests.releases import tree_of
from tests.terminals import written

WIDTH = 88
COMMANDS = (("status",), ("apply",), ("apply",), ("revert",))
PROMPT = "\x1b[1m$ vpatch {}\x1b[0m\n"

# GitHub's colors of code, for its two themes.
_GRAYS = [(110, 118, 129), (207, 34, 46), (26, 127, 55), (154, 103, 0), (9, 105, 218), (130, 80, 223), (27, 124, 131)]
LIGHT = TerminalTheme((255, 255, 255), (31, 35, 40), [*_GRAYS, (110, 118, 129)], [(101, 109, 118), *_GRAYS[1:]])
_BRIGHT = [(110, 118, 129), (255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255), (188, 140, 255)]
_LAST = [(57, 197, 207), (177, 186, 196)]
DARK = TerminalTheme((13, 17, 23), (230, 237, 243), [*_BRIGHT, *_LAST], [(139, 148, 158), *_BRIGHT[1:], *_LAST])
THEMES = {"light": LIGHT, "dark": DARK}


def path(theme: str) -> Path:
    """Return where the picture for one of GitHub's themes lies."""
    return ROOT / f"docs/recording-{theme}.svg"


def recorded() -> str:
    """Run the commands in a project whose `.venv` has vLLM 0.20.2; return what the terminal showed."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        packages = environment(Path(".venv"))
        shutil.copytree(tree_of("0.20.2"), packages, copy_function=link, dirs_exist_ok=True)
        env = {"COLUMNS": str(WIDTH), "VIRTUAL_ENV": str(Path(".venv").resolve())}
        screens = [PROMPT.format(" ".join(words)) + written(*words, env=env) for words in COMMANDS]
    return re.sub(r"python3\.\d+", "python3.12", "".join(screens).replace("\r\n", "\n"))


def drawn(screen: str, theme: str) -> str:
    """Return a picture of a terminal, without fonts from elsewhere."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(screen), soft_wrap=False)
    svg = console.export_svg(title="vpatch", theme=THEMES[theme], unique_id=f"vpatch-{theme}")
    framed = svg.replace("rgba(255,255,255,0.35)", "rgba(128,128,128,0.5)")  # rich's frame is white, also on white
    return re.sub(r"\s*@font-face \{.*?\}", "", framed, flags=re.DOTALL)


def texts(svg: str) -> Iterator[str]:
    """Yield the words that a picture shows."""
    for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg):
        yield from text.replace("&#160;", " ").split()


def main() -> None:
    """Write both pictures."""
    screen = recorded()
    for theme in THEMES:
        path(theme).write_text(drawn(screen, theme))
    sys.stdout.write(screen)


if __name__ == "__main__":
    main()

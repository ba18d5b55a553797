"""`python .ci/notes.py TAG`: print what CHANGELOG.md says of a release, as GitHub's page of the release needs it.

That page breaks every line where the text does and has no files beside it: so paragraphs become one line each, and
relative links become absolute.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What begins a line of its own: a list's item, a heading, a table's row, a fence.
_OWN = re.compile(r"\s*([-*+] |\d+\. |#|\||```|$)")


def notes(changelog: str, tag: str, source: str) -> str:
    """Return the notes; `source` is the repository's address. Exits if the changelog has nothing on this release."""
    version = re.escape(tag.removeprefix("v"))
    found = re.search(rf"^## \[?{version}\]?(?: [^\n]*)?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        sys.exit(f"CHANGELOG.md: it has no section, or an empty one, on {tag.removeprefix('v')}")
    text = re.sub(r"\]\((?!\w+:|#)([^)]+)\)", rf"]({source}/blob/{tag}/\1)", found[1].strip())
    lines: list[str] = []
    for line in text.splitlines():
        if lines and lines[-1] and not _OWN.match(line) and not lines[-1].startswith("#"):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def main(tag: str) -> None:
    """Print the notes."""
    source = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
    sys.stdout.write(notes((ROOT / "CHANGELOG.md").read_text("utf-8"), tag, source))


if __name__ == "__main__":
    main(sys.argv[1])

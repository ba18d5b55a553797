"""`python .ci/summary.py NAME IMAGE.json TESTS.json`: what `vpatch inspect` and `vpatch test` say, in Markdown."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

OUTCOMES = {True: "passed", False: "failed", None: "not run"}


def main(name: str, image: Path, tests: Path) -> None:
    """Print the summary."""
    sys.stdout.write(summary(name, *(json.loads(path.read_text("utf-8")) for path in (image, tests))))


def summary(name: str, image: dict[str, Any], tests: dict[str, Any]) -> str:
    """Give a table of the image, and one of the tests that did not pass."""
    ran = tests.get("tests", ())
    counts = Counter(OUTCOMES[test["ok"]] for test in ran)
    rows = {
        "image": f"`{image['image']['ref']}`",
        "base": f"`{image['base']['name']}`<br>`{image['base']['digest']}`",
        "vLLM": _cell(image["vllm"]),
        "overlays": "<br>".join(_cell(f"{one['id']}: {one['state']}") for one in image["overlays"]),
        "tests": ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "none",
    }
    lines = [f"### {name}", "", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items())]
    others = [test for test in ran if not test["ok"]]
    if others:
        lines += ["", "| test | | because |", "|---|---|---|"]
        lines += [f"| {_cell(one['name'])} | {OUTCOMES[one['ok']]} | {_cell(one['because'])} |" for one in others]
    lines += [f"- {_cell(str(problem))}" for problem in tests.get("problems", ())]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))

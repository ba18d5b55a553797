"""`python .ci/watch.py MATRIX.json`: what `vpatch matrix --baseline` found, for a workflow's summary and its issue.

Writes the outputs `found` ("difference" or "nothing"), `title` of the issue, empty where there is to be none, and its
`text`. REF in the environment says what was looked at, empty for releases.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from pathlib import Path

from vpatch.matrix.baseline import Urgency, from_objects
from vpatch.matrix.rendering import markdown_changes

TITLES = {"": "watch: vLLM's releases", "main": "watch: vLLM's main branch"}
LONGEST = 50_000  # characters; GitHub takes 65,536 in an issue
LAST = """
`vpatch matrix` says so, compared with `docs/matrix.json`; the page with every reason is with the [last runs]({runs}).
This issue is closed by the first run that finds no difference: when an overlay was mended, or the matrix recorded anew
(`python -m tests.readme`)."""


def main(path: Path) -> None:
    """Write the outputs, and the summary."""
    ref = os.environ["REF"]
    try:
        body = json.loads(path.read_bytes())
        changes = from_objects(body["changes"])
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{path} is no result of a comparison: {error!r}")
    lines = markdown_changes(changes)
    write("GITHUB_STEP_SUMMARY", "\n".join([f"## {ref or 'releases'}", "", *(lines or ["No difference.", ""])]))
    found = "difference" if any(change.kind is not Urgency.STILL for change in changes) else "nothing"
    runs = f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}/actions/workflows/watch.yml"
    text = cut("\n".join(lines)) + LAST.format(runs=runs)
    end = secrets.token_hex()  # what upstream's code says cannot end the text
    write("GITHUB_OUTPUT", f"found={found}\ntitle={TITLES.get(ref, '')}\ntext<<{end}\n{text}\n{end}\n")


def cut(text: str) -> str:
    """Give as many lines as go into an issue."""
    return text if len(text) <= LONGEST else text[:LONGEST].rpartition("\n")[0] + "\n\nAnd more.\n"


def write(name: str, text: str) -> None:
    """Append to a file of the runner's."""
    with Path(os.environ[name]).open("a", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""`diff` prints a patch that other tools apply, byte by byte."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import rewrite
from tests.conftest import Process, Program, Trees, unchanged
from tests.hybrid import COMPANION, CONFIG, ONLY
from tests.tiers import deep

TOOLS = {"patch": ["patch", "-p1", "--quiet"], "git": ["git", "apply", "-p1"]}


def odd(data: bytes) -> bytes:
    """Give the file CRLF line endings, bytes that are not UTF-8, and no newline at the end."""
    text = f"# -*- coding: latin-1 -*-\n# caf\xe9 \x85 \x1c\n{data.decode()}".rstrip("\n")
    return text.replace("\n", "\r\n").encode("latin-1", "replace")


@pytest.mark.parametrize("spoil", [deep(bytes), odd])
def test_the_diff_is_what_apply_does(
    child: Process, vpatch: Program, tree: Path, linked: Trees, spoil: Callable[[bytes], bytes]
) -> None:
    copies = {tool: linked("0.20.2", tool) for tool in TOOLS}
    for root in (tree, *copies.values()):
        rewrite(root / CONFIG, spoil((root / CONFIG).read_bytes()))
    with unchanged(tree):
        ran = child("diff", "-q", tree, *ONLY)
    assert (ran.code, ran.err) == (0, "")
    assert f"--- /dev/null\n+++ b/{COMPANION}\n@@ -0,0 +1," in ran.out

    diff = ran.out.encode("utf-8", "surrogateescape")
    for tool, copy in copies.items():
        environment = {"GIT_CEILING_DIRECTORIES": str(copy.parent)}
        subprocess.run(TOOLS[tool], cwd=copy, input=diff, check=True, env=environment)

    changed = vpatch("apply", tree, *ONLY, "--json").json["changed"]
    sources = [file for file in changed if not file.endswith("RECORD")]
    assert {COMPANION, CONFIG} < set(sources)
    for file in sources:
        assert {(root / file).read_bytes() for root in copies.values()} == {(tree / file).read_bytes()}, file
    assert vpatch("diff", tree, *ONLY).out == ""


def test_the_diff_in_json(vpatch: Program, slim: Trees) -> None:
    tree = slim("0.20.2")
    found = vpatch("diff", tree, *ONLY, "--json").json

    assert found["diff"] == vpatch("diff", tree, *ONLY).out
    assert found["files"] == sorted(found["files"])
    assert {COMPANION, CONFIG} < set(found["files"])
    shown = [line[6:] for line in found["diff"].splitlines() if line.startswith("+++ b/")]
    new = [file for file in found["files"] if not (tree / file).exists()]
    assert shown == [*(file for file in found["files"] if file not in new), *new], "new files are behind changed ones"
    assert found["changed"] == []

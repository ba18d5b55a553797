"""Unusual but valid files: everything outside the edits survives, byte by byte."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import rewrite
from tests.conftest import Program, Trees, contents_of
from tests.hybrid import HYBRID, ONLY, UPSTREAMS
from tests.tiers import deep


def spoil(data: bytes) -> bytes:
    """Change the file's encoding and line ends, and drop its last newline. `core/test_workspace.py` does each alone."""
    text = b"# -*- coding: latin-1 -*-\n# \xe9\xff\n" + data.decode().encode("latin-1", "replace")
    return text.rstrip(b"\n").replace(b"\n", b"\r\n")


@pytest.mark.parametrize("overlays", [(HYBRID,), deep(())])
def test_unusual_files_keep_everything_but_the_edits(
    vpatch: Program, tree: Path, patched: Trees, overlays: tuple[str, ...]
) -> None:
    goal, only = patched("0.20.2", *overlays), [f"--overlay={name}" for name in overlays]
    sources = [file for file in contents_of(tree) if file.endswith(".py")]
    targets = [file for file in sources if (tree / file).read_bytes() != (goal / file).read_bytes()]
    assert set(UPSTREAMS) <= set(targets)
    for file in targets:
        rewrite(tree / file, spoil((tree / file).read_bytes()))
    before = contents_of(tree)

    ran = vpatch("apply", tree, *only, "--json")

    assert (ran.code, ran.err) == (0, "")
    assert {item["id"]: item["state"] for item in ran.json["overlays"]}[HYBRID] == "applied"
    # An overlay uses the line endings and the encoding of the file.
    for file in targets:
        assert (tree / file).read_bytes() == spoil((goal / file).read_bytes())
    assert vpatch("verify", tree, *only, "--json").json["problems"] == []
    assert vpatch("apply", tree, *only, "--json").json["changed"] == []
    assert vpatch("revert", tree).code == 0
    assert contents_of(tree) == before


def test_a_tree_may_be_named_by_a_symlink(vpatch: Program, tree: Path, slim: Trees) -> None:
    (tree.parent / "name").symlink_to(tree)

    ran = vpatch("apply", tree.parent / "name", *ONLY, "--json")

    assert (ran.code, ran.json["tree"]) == (0, str(tree))
    assert vpatch("revert", tree.parent / "name").code == 0
    subprocess.run(["diff", "-r", tree, slim("0.20.2")], check=True)

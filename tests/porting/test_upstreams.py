"""Of a whole module that is imported, what later releases have, too, is upstream's."""

from __future__ import annotations

from pathlib import Path

import pytest
from vpatch.porting.upstreams import own

from tests.conftest import Program
from tests.loopback import IndexServer
from tests.porting.making import FILE
from tests.releases import tree_of
from tests.wheels import packed

BASE = "a\nb\nc\nd\ne\nf\n"

# The changed module, that of two later releases, what is the user's, and the remarks.
CASES = {
    "nothing of it": ("a\nB\nc\nd\ne\nf\n", ["a\nb\nc\nd\nE\nf\n"], "a\nB\nc\nd\ne\nf\n", ()),
    "some of it": ("a\nB\nc\nd\nE\nf\n", ["a\nb\nc\nd\nE\nf\n"], "a\nB\nc\nd\ne\nf\n", ("line 5 of it", "0.1")),
    "each in another release": (
        "a\nB\nc\nD\ne\nF\n",
        ["a\nb\nc\nD\ne\nf\n", "a\nb\nc\nD\ne\nF\nG\n", "a\nB1\nc\nD\ne\nF\n"],
        "a\nB\nc\nd\ne\nf\n",
        ("line 4 of it", "0.1", "line 6 of it", "0.3"),
    ),
    "lines that came": (
        "a\nB\nc\nx\ny\nd\ne\nf\n",
        ["a\nb\nc\nx\ny\nd\ne\nf\n"],
        "a\nB\nc\nd\ne\nf\n",
        ("lines 4-5 of", "0.1"),
    ),
    "lines that went": (
        "a\nB\nc\nd\nf\n",
        ["a\nb\nc\nd\nf\n"],
        "a\nB\nc\nd\ne\nf\n",
        ("what is gone at line 5", "0.1"),
    ),
    "all of it, as a later release": ("a\nB\nc\nd\ne\nf\n", ["a\nB\nc\nd\ne\nf\n"], "a\nB\nc\nd\ne\nf\n", ()),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_the_users(case: str) -> None:
    after, later, mine, words = CASES[case]

    found, remarks = own(BASE, after, [(f"0.{number}", text) for number, text in enumerate(later, 1)])

    assert found == mine
    assert len(remarks) == len(words) // 2
    assert all(word in " ".join(remarks) for word in words)


def test_a_module_with_changes_of_a_later_release(here: Path, index: IndexServer, vpatch: Program) -> None:
    root = tree_of("0.20.2")
    before = (root / FILE).read_text()
    upstream = before.replace("import torch\n", "import torch\n\nLAYERS = 61\n", 1)
    changed = upstream + "\n\nMINE = 1\n"
    for version, text in (("0.20.2", before), ("0.21.0", upstream)):
        info = f"vllm-{version}.dist-info"
        data = {FILE: text.encode(), f"{info}/METADATA": f"Name: vllm\nVersion: {version}\n".encode()}
        index.publish(f"vllm-{version}-cp38-abi3-manylinux_2_35_x86_64.whl", packed(data, info))
    (here / "mine.py").write_text(changed)

    made = vpatch("import", "mine.py", "--as", FILE, "--base", root)

    assert made.code == 0, made.err
    assert "  left out: lines 9-10 of it, as in vLLM 0.21.0; to keep all, import a diff\n" in made.out
    text = (here / "patches/mine.vpatch").read_text()
    assert "+MINE = 1\n" in text
    assert "LAYERS" not in text

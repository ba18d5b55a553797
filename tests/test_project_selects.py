"""What a project's file leaves out: commands name it, and print what applies it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Program, Trees
from tests.hybrid import HYBRID, INTERFACE
from tests.releases import todo
from tests.test_project import ID, OTHER, TOML, put, repo

__all__ = ["repo"]


@pytest.mark.deep
def test_what_the_project_does_not_select_is_named(vpatch: Program, repo: Path, linked: Trees) -> None:
    """With the command that applies it; `import` prints one that does, too."""
    tree = linked("0.20.2")
    put(repo, {"vpatch.toml": f'{TOML}overlays = ["{ID}"]\n', "patches/stripped.vpatch": OTHER})
    (repo / "layers.py").write_text((tree / INTERFACE).read_text() + "LAYERS = 61\n")
    made = vpatch("import", "layers.py", "--as", INTERFACE, "--base", tree, "-o", "new")
    next_ = f"vpatch apply --with layers --patches new {tree}"
    assert f"Next: `{next_}`, " in made.err, made
    words = ("--patches", "patches", tree)
    left = f"vpatch.toml does not select stripped: `vpatch apply --patches patches --with stripped {tree}` does.\n"

    ran = vpatch("status", tree)
    assert f" vpatch.toml does not select stripped: `vpatch apply --with stripped {tree}` does.\n" in ran.err
    assert HYBRID not in ran.err, "it is not opt-in"
    for command in (("diff",), ("apply", "--dry-run"), ("apply",), ("apply",), ("verify",)):
        assert vpatch(*command, *words).err.endswith(f" {left}")
    for silent in ((tree,), (*words, "--without", "stripped"), (*words, "--overlay", ID)):
        assert "select" not in vpatch("apply", *silent).err
    assert vpatch("apply", "--with", "stripped", *words).code == 0
    assert vpatch("apply", *words).err.endswith("Nothing to do: 2 overlays are applied.\n")
    assert vpatch(*next_.split()[1:]).code == 0
    assert "LAYERS = 61  # vpatch: layers\n" in (tree / INTERFACE).read_text()


@pytest.mark.deep
def test_plan_and_matrix_say_what_apply_leaves_out(vpatch: Program, repo: Path) -> None:
    put(repo, {"vpatch.toml": f'{TOML}overlays = ["{ID}"]\n'})
    asked = ("--model", "Qwen3.6-35B-A3B-NVFP4", "--gpu", "5090", "--vllm", "0.20.2", "--max-num-seqs", "16")
    planned = vpatch("plan", *asked, "--max-model-len", "32k")
    left = "`vpatch apply` alone leaves these out, which the project's file does not select: hybrid-mtp-graphs, "
    assert (planned.code, left in planned.out, "both are fine" in planned.out) == (0, True, False)

    ahead = vpatch("matrix", "--from", "0.20.2", "--to", "0.26.0", "--json").json["upgrade"]
    assert {one["prospect"] for one in ahead if one["overlay"] == "turboquant-auto-dtype"} == {"offered"}

    put(repo, {"vpatch.toml": f'{TOML}with = ["receipt"]\nwithout = ["{HYBRID}"]\n'})
    planned = vpatch("plan", *asked, "--max-model-len", "32k")
    default = len(todo("0.20.2"))  # with a patch file and the receipt, without one
    assert f"`vpatch apply` alone applies {default + 1}; the commands here are without {ID}, which " in planned.out

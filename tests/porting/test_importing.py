"""`vpatch import`: from a diff, a mail, a series or a whole module to a patch file that every command takes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from vpatch.guest.record import entry, parse, revise
from vpatch.manifest import sha256

from tests.conftest import Program, Trees, contents_of, unchanged
from tests.porting.installed import rewrite
from tests.porting.making import ADDED, FILE, OTHER, diff, git_diff, text_of, write

MAIL = """\
From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001
From: Somebody <somebody@example.org>
Subject: [PATCH 1/2] Name the number of
 layers (#51234)

It is named nowhere.
---
 vllm/sequence.py | 1 +

"""


def test_a_mail_becomes_a_patch_file_that_is_applied_and_reverted(
    here: Path, pristine: Trees, tree: Path, vpatch: Program
) -> None:
    base = pristine("0.20.2")
    before = text_of(base)
    (here / "0001-name-layers.patch").write_text(MAIL + diff(before, before.replace(*ADDED, 1)))

    made = vpatch("import", "0001-name-layers.patch", "--base", base)

    assert made.code == 0, made.err
    assert made.out.startswith("patches/name-layers.vpatch  1 change in 1 module, for 0.20.2\n")
    assert made.err.endswith(f"Next: `vpatch apply --patches patches {base}`, `vpatch matrix --patches patches`.\n")
    assert (here / "patches/name-layers.vpatch").read_text() == (
        "Format: 1\nSubject: Name the number of layers (#51234)\nDescription: It is named nowhere.\n"
        "Upstream: vllm-project/vllm#51234\nBase: 0.20.2\n\n"
        f"--- {FILE}\n@@\n ^\n+LAYERS = 61\n if TYPE_CHECKING:\n     ...\n else:\n     ...\n"
    )
    options = ("--patches", "patches", "--overlay", "name-layers", tree)
    assert "name-layers  pending" in vpatch("status", *options).out
    assert vpatch("apply", *options).code == 0
    assert "LAYERS = 61  # vpatch: name-layers\n" in text_of(tree)
    assert "Nothing to do" in vpatch("apply", *options).err
    assert vpatch("verify", *options).code == 0
    assert vpatch("revert", tree).code == 0
    assert text_of(tree) == before


@pytest.mark.deep
def test_a_series_becomes_a_patch_file_each_unless_one_builds_on_another(
    here: Path, pristine: Trees, vpatch: Program
) -> None:
    base = pristine("0.20.2")
    first, other = text_of(base), text_of(base, OTHER)
    second = first.replace(*ADDED, 1)
    folder = here / "series"
    folder.mkdir()
    (folder / "1-layers.patch").write_text(diff(first, second))
    (folder / "2-logger.patch").write_text(
        diff(other, other.replace("import os\n", "import os\nimport re\n", 1), OTHER)
    )
    (folder / "3-more-layers.patch").write_text(diff(second, second.replace("61", "62")))

    refused = vpatch("import", "series", "--base", base)

    assert refused.code == 1
    assert "cannot import: more-layers: vllm/sequence.py: hunk 1 of 1" in refused.err
    assert "it builds on the patches before it: --squash makes one patch file of all" in refused.err
    assert not (here / "patches").exists()

    squashed = vpatch("import", "series", "--base", base, "--squash", "-o", "one", "--json")
    assert squashed.code == 0, squashed.out
    (patch,) = squashed.json["patches"]
    assert (patch["id"], patch["path"], patch["files"]) == ("layers", "one/layers.vpatch", [FILE, OTHER])
    assert "+LAYERS = 62\n" in (here / "one/layers.vpatch").read_text()

    (folder / "3-more-layers.patch").unlink()
    named = vpatch("import", "series", "--base", base, "--name", "both")
    assert (named.code, (here / "patches").exists()) == (2, False)
    assert "--name is for one patch file, not 2: --squash makes one of all" in named.err
    assert vpatch("import", "series", "--base", base, "--name", "both", "--squash", "-o", "one").code == 0
    assert (here / "one/both.vpatch").is_file()
    made = vpatch("import", "series", "--base", base)
    assert made.code == 0
    assert f"\n  adds `import re` to {OTHER}\n" in made.out
    assert sorted(path.name for path in (here / "patches").iterdir()) == ["layers.vpatch", "logger.vpatch"]


@pytest.mark.deep
@pytest.mark.usefixtures("offline")
def test_a_whole_module(here: Path, pristine: Trees, vpatch: Program) -> None:
    base = pristine("0.20.2")
    (here / "my_sequence.py").write_text(text_of(base).replace(*ADDED, 1))

    made = vpatch("import", "my_sequence.py", "--as", FILE, "--base", base)

    assert made.code == 0, made.err
    assert "+LAYERS = 61\n" in (here / "patches/my-sequence.vpatch").read_text()
    again = vpatch("import", "my_sequence.py", "--as", FILE, "--base", base)
    assert (again.code, again.err.count("it is not overwritten")) == (1, 1)
    assert vpatch("import", "my_sequence.py", "--as", FILE, "--base", base, "--force").code == 0


def test_the_base_is_the_installed_vllm_if_the_patch_fits_it(
    here: Path, pristine: Trees, vpatch: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = here / ".venv/lib/python3.11/site-packages"
    shutil.copytree(pristine("0.20.2"), site, copy_function=lambda one, other: Path(other).hardlink_to(one))
    (here / ".venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    before = text_of(site)
    (here / "fix.diff").write_text(diff(before, before.replace(*ADDED, 1)))

    made = vpatch("import", "fix.diff", "--json")

    assert made.code == 0, made.out
    assert made.json["patches"][0]["base"] == "0.20.2"
    assert made.json["patches"][0]["states"][0]["state"] == "pending"


@pytest.mark.deep
def test_a_base_that_vpatch_patched_is_what_it_was_before(
    here: Path, pristine: Trees, tree: Path, vpatch: Program
) -> None:
    file = "vllm/engine/arg_utils.py"
    before = text_of(pristine("0.20.2"), file)
    assert vpatch("apply", tree, "--overlay", "turboquant-hybrid").code == 0
    assert text_of(tree, file) != before
    (here / "fix.diff").write_text(
        diff(before, before.replace("import argparse\n", "import argparse\nLAYERS = 61\n", 1), file)
    )

    made = vpatch("import", "fix.diff", "--base", tree)

    assert made.code == 0, made.err
    assert text_of(tree, file) != before


MINE, BESIDE = "vllm/mine/policy.py", "vllm/v1/core/my_policy.py"


def test_a_diff_that_adds_modules(here: Path, pristine: Trees, tree: Path, vpatch: Program) -> None:
    """Two are in a new folder, one is beside upstream's. Revert leaves nothing of them."""
    before = contents_of(tree)
    old = {FILE: text_of(tree)}
    added = {MINE: "# Ours.\n\nLAYERS = 61\n", "vllm/mine/__init__.py": "", BESIDE: "def pick():\n    return 1"}
    new = added | {
        FILE: old[FILE].replace("import torch\n", "import torch\n\nfrom vllm.mine.policy import LAYERS\n", 1)
    }
    (here / "policy.patch").write_text(git_diff(here / "work", old, new))

    made = vpatch("import", "policy.patch", "--base", pristine("0.20.2"))

    assert made.code == 0, made.err
    assert [line for line in made.out.splitlines() if line.startswith("  adds ")] == [
        "  adds vllm/mine/__init__.py, 1 line",
        f"  adds {MINE}, 3 lines",
        f"  adds {BESIDE}, 2 lines",
        f"  adds `from vllm.mine.policy import LAYERS` to {FILE}",
    ]
    options = ("--patches", "patches", "--overlay", "policy", tree)
    assert "policy  pending" in vpatch("status", *options).out
    applied = vpatch("apply", "--json", *options).json
    assert applied["added"] == sorted(added)
    assert "Nothing to do" in vpatch("apply", *options).err
    assert vpatch("verify", *options).code == 0
    shown = vpatch("show", "--patches", "patches", "policy", tree)
    assert f"  adds {MINE}, 4 lines\n" in shown.out
    assert "unlisted-file" not in vpatch("doctor", "--json", *options).out
    assert vpatch("revert", tree).code == 0
    assert contents_of(tree) == before

    for path, text in new.items():
        (tree / path).parent.mkdir(exist_ok=True)
        rewrite(tree / path, text.encode())
    assert "policy  merged" in vpatch("status", *options).out
    with unchanged(tree):
        assert vpatch("apply", *options).code == 0
        assert vpatch("revert", tree).code == 0
    rewrite(tree / MINE, b"LAYERS = 60\n")
    with unchanged(tree):
        drifted = vpatch("apply", *options)
        assert f"{MINE}: exists already, and is another program: upstream's, or your own" in drifted.err


BAD: dict[str, tuple[Callable[[str], tuple[str, str]], str]] = {
    "reversed": (lambda text: (text.replace(*ADDED, 1), text), "has the change already, or the diff is reversed"),
    "another base": (
        lambda text: (text.replace("torch", "jax"), text.replace("torch", "jax").replace("jax\n", "jax\nx = 1\n", 1)),
        "hunk 1 of 1",
    ),
    "comments alone": (
        lambda text: (text, text.replace("import torch\n", "import torch  # here\n")),
        "nothing changes but",
    ),
    "not Python": (lambda text: (text, text.replace("import torch\n", "import (\n")), "not valid Python"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_proven_is_not_written(name: str, here: Path, pristine: Trees, vpatch: Program) -> None:
    change, says = BAD[name]
    (here / "fix.diff").write_text(diff(*change(text_of(pristine("0.20.2")))))

    refused = vpatch("import", "fix.diff", "--base", pristine("0.20.2"))

    assert refused.code == 1
    assert refused.err.startswith("cannot import: fix: "), refused.err
    assert says in refused.err
    assert refused.err.count("\n") == 1
    assert not (here / "patches").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("missing.patch",), 2, "cannot import: missing.patch: no such file or folder"),
        (("fix.diff", "--base", "0.0.1"), 2, "0.0.1"),
        (("fix.diff", "--as", "vllm/none.py", "--base", "BASE"), 1, "has no such module\n"),
        (("fix.diff", "--as", "config/cache.py", "--base", "BASE"), 1, "did you mean vllm/config/cache.py?"),
        (("fix.diff", "--as", "vllm/cache.py", "--base", "BASE"), 1, "did you mean vllm/config/cache.py, "),
        (("fix.diff", "--as", FILE), 1, "are not there; name the vLLM that it is for by --base V: a release, or a"),
        (("--run", "true"), 1, "are not there; name the vLLM that it is for by --base V: a release, or a"),
        (("-", "--as", FILE, "--base", "BASE"), 2, "--as takes one file as SOURCE"),
        ((), 2, "Missing argument"),
    ],
)
def test_usage(arguments: tuple[str, ...], code: int, says: str, here: Path, pristine: Trees, vpatch: Program) -> None:
    base = pristine("0.20.2")
    (here / "fix.diff").write_text(diff(text_of(base), text_of(base).replace(*ADDED, 1)))

    ran = vpatch("import", *(str(base) if word == "BASE" else word for word in arguments))

    assert ran.code == code
    assert says in ran.err


@pytest.mark.deep
def test_the_base_is_the_newest_release_that_every_hunk_fits(here: Path, pristine: Trees, vpatch: Program) -> None:
    """The package index has the releases; a diff that fits none says which is nearest."""
    file = "vllm/config/cache.py"
    before = text_of(pristine("0.24.0"), file)
    at = before.index("logger = init_logger")
    (here / "fix.diff").write_text(diff(before, f"{before[:at]}LAYERS = 61\n{before[at:]}", file))

    made = vpatch("import", "fix.diff", "--json")

    assert made.code == 0, made.out
    states = {one["vllm"]: one["state"] for one in made.json["patches"][0]["states"]}
    assert states[made.json["patches"][0]["base"]] == "pending"
    (here / "fix.diff").write_text(diff("a\n" * 9, "a\n" * 5 + "b\n" + "a\n" * 4, file))
    refused = vpatch("import", "fix.diff", "--force")
    assert refused.code == 1
    assert "it fits no release" in refused.err


RECORD = "vllm-0.20.2.dist-info/RECORD"
TABLE, TEMPLATE = "vllm/model_executor/layers/configs/E=8,N=[1,2],device_name=(A).json", "vllm/tool/chat.jinja"


@pytest.fixture
def with_data(here: Path, slim: Trees, pristine: Trees) -> Path:
    """A vLLM of few files, with a template, which RECORD lists."""
    tree = shutil.copytree(slim("0.20.2"), here / "small", copy_function=shutil.copyfile)
    shutil.copyfile(pristine("0.20.2") / FILE, tree / FILE)
    rows = revise(parse((tree / RECORD).read_bytes()), {TEMPLATE: entry(TEMPLATE, b"{% if a %}\nb\n")})
    rewrite(tree / RECORD, rows.serialize())
    (tree / TEMPLATE).parent.mkdir()
    (tree / TEMPLATE).write_text("{% if a %}\nb\n")
    return tree


def test_a_diff_that_changes_data(here: Path, with_data: Path, vpatch: Program) -> None:
    """A template changes, a table comes in a new folder, without a newline at its end."""
    tree, before = with_data, contents_of(with_data)
    old = {TEMPLATE: text_of(tree, TEMPLATE), FILE: text_of(tree)}
    new = {TEMPLATE: "{% if a %}\n\n++b\n", TABLE: '{"1": 2}', FILE: old[FILE].replace(*ADDED, 1)}
    (here / "tables.patch").write_text(git_diff(here / "work", old, new))

    made = vpatch("import", "tables.patch", "--base", tree)

    assert made.code == 0, made.err
    assert made.out.splitlines()[:3] == [
        "patches/tables.vpatch  3 changes in 3 files, for 0.20.2",
        f"  adds {TABLE}, 1 line",
        f"  replaces {TEMPLATE}, 3 lines",
    ]
    assert (
        (here / "patches/tables.vpatch")
        .read_text()
        .endswith(
            f'+++ {TABLE}\n+{{"1": 2}}\n\\ No newline at end of file\n'
            f"--- {TEMPLATE}\n@@ sha256 {sha256(old[TEMPLATE].encode())}\n+{{% if a %}}\n+\n+++b\n"
        )
    )
    options = ("--patches", "patches", "--overlay", "tables", tree)
    assert "tables  pending" in vpatch("status", *options).out
    assert "+++b" in vpatch("diff", *options).out
    applied = vpatch("apply", "--json", *options).json
    assert TABLE in applied["added"]
    assert TEMPLATE in applied["changed"]
    assert ((tree / TABLE).read_text(), (tree / TEMPLATE).read_text()) == (new[TABLE], new[TEMPLATE])
    assert "Nothing to do" in vpatch("apply", *options).err
    assert vpatch("verify", *options).code == 0
    shown = vpatch("show", "--patches", "patches", "tables", tree).out
    assert f"  adds {TABLE}, 1 line\n" in shown
    assert f"--- a/{TEMPLATE}\n" in shown
    rewrite(tree / TEMPLATE, b"mine")
    assert "edited after vpatch" in vpatch("revert", tree).err
    assert "tables  drifted" in vpatch("status", *options).out
    assert vpatch("verify", *options).code == 1
    rewrite(tree / TEMPLATE, new[TEMPLATE].encode())
    assert vpatch("revert", tree).code == 0
    assert contents_of(tree) == before

    write(tree, {TABLE: new[TABLE]})
    for path in (TEMPLATE, FILE):
        rewrite(tree / path, new[path].encode())
    assert "tables  merged" in vpatch("status", *options).out
    with unchanged(tree):
        assert vpatch("apply", *options).code == 0

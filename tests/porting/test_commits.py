"""`vpatch import --git`: a patch file of each commit, proven on the files of the commit that all are based on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Program, Trees, unchanged
from tests.matrix.git_server import git
from tests.porting.making import ADDED, FILE, OTHER, text_of

LOGGER = ("import os\n", "import os\nimport re\n")
MESSAGE = """\
Name the number of layers (#51234)

It is named nowhere. As a diff:

diff --git a/vllm/logger.py b/vllm/logger.py
--- a/vllm/logger.py
+++ b/vllm/logger.py
@@ -1,1 +1,1 @@
-one
+other

Signed-off-by: Somebody <somebody@example.org>
"""


class Repository:
    """A repository with a few modules of a release, tagged as that, and commits on a branch."""

    def __init__(self, root: Path, release: Path) -> None:
        self.root = root
        for file in (FILE, OTHER, "vllm/__init__.py"):
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(release / file, root / file)
        git(root, "init", "--quiet")
        self.commit("Release")
        git(root, "tag", "v0.20.2")

    def commit(self, message: str) -> str:
        git(self.root, "add", "--all")
        git(self.root, "commit", "--quiet", "--allow-empty", "--allow-empty-message", "-m", message)
        return git(self.root, "rev-parse", "HEAD")

    def change(self, message: str, change: tuple[str, str], file: str = FILE) -> str:
        text = text_of(self.root, file)
        assert change[0] in text
        (self.root / file).write_text(text.replace(*change, 1))
        return self.commit(message)


@pytest.fixture
def repository(here: Path, pristine: Trees) -> Repository:
    return Repository(here / "vllm-fork", pristine("0.20.2"))


def test_each_commit_becomes_a_patch_file(repository: Repository, here: Path, tree: Path, vpatch: Program) -> None:
    repository.change(MESSAGE, ADDED)
    repository.change("[Core] Löggen", LOGGER, OTHER)
    (repository.root / "tests").mkdir()
    (repository.root / "tests/test_layers.py").touch()
    repository.commit("Test the layers")
    repository.commit("Nothing")

    made = vpatch("import", "--git", "vllm-fork", "v0.20.2..")

    assert made.code == 0, made.err
    assert sorted(path.name for path in (here / "patches").iterdir()) == [
        "core-loggen.vpatch",
        "name-the-number-of-layers.vpatch",
    ]
    text = (here / "patches/name-the-number-of-layers.vpatch").read_text()
    assert text.startswith(
        "Format: 1\nSubject: Name the number of layers (#51234)\nDescription: It is named nowhere. As a diff:\n"
        "Upstream: vllm-project/vllm#51234\nBase: 0.20.2\n\n"
    )
    assert "\n+LAYERS = 61\n" in text
    assert "logger" not in text
    assert "\nSubject: [Core] Löggen\n" in (here / "patches/core-loggen.vpatch").read_text()
    options = ("--patches", "patches", "--overlay", "name-the-number-of-layers", tree)
    assert vpatch("apply", *options).code == 0
    assert "LAYERS = 61  # vpatch: name-the-number-of-layers\n" in text_of(tree)


def test_a_commit_that_builds_on_another_needs_squash(repository: Repository, here: Path, vpatch: Program) -> None:
    repository.change("Name the layers", ADDED)
    repository.change("Correct the layers", ("61", "62"))

    refused = vpatch("import", "--git", "vllm-fork", "v0.20.2..HEAD")
    squashed = vpatch("import", "--git", "vllm-fork", "v0.20.2..HEAD", "--squash")

    assert refused.code == 1
    assert refused.err.startswith("cannot import: correct-the-layers: ")
    assert "--squash makes one patch file of all" in refused.err
    assert squashed.code == 0, squashed.err
    assert "+LAYERS = 62\n" in (here / "patches/name-the-layers.vpatch").read_text()


@pytest.mark.parametrize(
    ("tag", "commits", "base"),
    [
        ("v0.31.0", 0, "0.31.0"),
        ("v0.31.0", 2, "0.31.1.dev2+g"),
        ("v0.31.0rc1", 1, "0.31.0rc2.dev1+g"),
        ("v0.31.0.post1", 1, "0.31.1.dev1+g"),
    ],
)
def test_the_version_is_that_of_the_newest_tag(
    tag: str, commits: int, base: str, repository: Repository, vpatch: Program
) -> None:
    """Without a tag on the commit itself, it is as vLLM's own builds are called."""
    git(repository.root, "tag", "--delete", "v0.20.2")
    git(repository.root, "tag", "--annotate", "-m", "It", tag)
    git(repository.root, "tag", "nightly")
    for number in range(commits):
        repository.commit(str(number))
    git(repository.root, "branch", "upstream")
    repository.change("Name the layers", ADDED)

    made = vpatch("import", "--git", "vllm-fork", "upstream..main", "--json")

    assert made.code == 0, made.out
    (patch,) = made.json["patches"]
    short = git(repository.root, "rev-parse", "--short=9", "upstream")
    assert patch["base"] == (f"{base}{short}" if commits else base)
    assert f"\nBase: {patch['base']}\n" in Path(patch["path"]).read_text()


def test_the_base_is_where_the_branch_left(repository: Repository, here: Path, vpatch: Program) -> None:
    git(repository.root, "checkout", "--quiet", "-b", "fix")
    repository.change("", ADDED)
    git(repository.root, "checkout", "--quiet", "main")
    repository.change("Another import", ("import torch\n", "import torch, math\n"))

    made = vpatch("import", "--git", "vllm-fork", "main..fix", "--json")

    assert made.code == 0, made.out
    (patch,) = made.json["patches"]
    assert patch["base"] == "0.20.2"
    assert patch["id"] == f"commit-{git(repository.root, 'rev-parse', 'fix')[:12]}"


def test_no_program_of_the_repository_runs(repository: Repository, here: Path, vpatch: Program) -> None:
    repository.change("Name the layers", ADDED)
    (repository.root / ".gitattributes").write_text("*.py diff=odd filter=odd\n")
    for name in ("diff.odd.command", "diff.odd.textconv", "diff.external", "core.fsmonitor", "core.pager"):
        git(repository.root, "config", name, f"touch {here}/ran; cat")
    hook = repository.root / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {here}/ran\n")
    hook.chmod(0o755)
    (repository.root / FILE).touch()  # so that git would refresh its index
    git(repository.root, "config", "diff.noprefix", "true")
    git(repository.root, "config", "diff.context", "0")
    git(repository.root, "config", "i18n.logOutputEncoding", "UTF-16")

    with unchanged(repository.root / ".git"):
        made = vpatch("import", "--git", "vllm-fork", "v0.20.2..HEAD")

    assert made.code == 0, made.err
    assert not (here / "ran").exists()


def _merged(repository: Repository) -> None:
    git(repository.root, "checkout", "--quiet", "-b", "side")
    repository.change("Side", ADDED)
    git(repository.root, "checkout", "--quiet", "main")
    repository.change("Main", LOGGER, OTHER)
    git(repository.root, "merge", "--quiet", "--no-edit", "side")


def _untagged(repository: Repository) -> None:
    git(repository.root, "tag", "--delete", "v0.20.2")
    git(repository.root, "branch", "start")
    repository.change("Name the layers", ADDED)


def _apart(repository: Repository) -> None:
    git(repository.root, "checkout", "--quiet", "--orphan", "apart")
    repository.commit("Apart")


def _deleted(repository: Repository) -> None:
    (repository.root / OTHER).unlink()
    repository.commit("Remove it")


def _without_vllm(repository: Repository) -> None:
    git(repository.root, "checkout", "--quiet", "--orphan", "other")
    git(repository.root, "rm", "--quiet", "-rf", "vllm")
    repository.commit("Other")
    git(repository.root, "tag", "v1.0")
    (repository.root / "vllm").mkdir()
    (repository.root / FILE).write_text("LAYERS = 61\n")
    repository.commit("Add it")


def _tests(repository: Repository) -> None:
    (repository.root / "tests").mkdir()
    (repository.root / "tests/test_layers.py").write_text("pass\n")
    repository.commit("Test the layers")


BAD: dict[str, tuple[Callable[[Repository], object], tuple[str, ...], str]] = {
    "merge": (_merged, ("v0.20.2..main",), "is a merge, and has no patch of its own; rebase the branch"),
    "no tag": (_untagged, ("start..main",), "no tag of a version leads to"),
    "apart": (_apart, ("main..apart",), "cannot read commits: main..apart: the two have no commit in common"),
    "deleted": (_deleted, ("v0.20.2..main",), "vllm/logger.py: it is deleted"),
    "no vLLM": (_without_vllm, ("v1.0..other",), "it has no folder vllm/"),
    "tests": (_tests, ("v0.20.2..main",), "it changes no module of vLLM: tests/test_layers.py"),
    "nothing": (lambda _: None, ("v0.20.2..main",), "cannot read commits: v0.20.2..main: it has no commits"),
    "no range": (lambda _: None, ("main",), "cannot read commits: main: a range reads like"),
    "three dots": (lambda _: None, ("v0.20.2...main",), "a range reads like"),
    "no commit": (lambda _: None, ("v0.20.2..none",), "no such revision: vllm-fork: none: git knows no commit"),
    "an option": (lambda _: None, ("main..--output=x",), "a git revision cannot begin with a hyphen"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_range_that_cannot_be_imported(name: str, repository: Repository, here: Path, vpatch: Program) -> None:
    prepare, words, says = BAD[name]
    prepare(repository)

    refused = vpatch("import", "--git", "vllm-fork", *words)

    assert refused.code == 1
    assert says in refused.err
    assert refused.err.count("\n") == 1
    assert not (here / "patches").exists()


def test_a_version_may_be_named(repository: Repository, here: Path, vpatch: Program) -> None:
    _untagged(repository)

    made = vpatch("import", "--git", "vllm-fork", "start..", "--base", "0.31.1")
    refused = vpatch("import", "--git", "vllm-fork", "start..", "--base", "main", "--force")

    assert made.code == 0, made.err
    assert "\nBase: 0.31.1\n" in (here / "patches/name-the-layers.vpatch").read_text()
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "not a version: main" in refused.err


@pytest.mark.parametrize("where", ["missing", "fix.diff", ".", "https://github.com/vllm-project/vllm"])
def test_no_repository(where: str, here: Path, vpatch: Program) -> None:
    (here / "fix.diff").touch()

    refused = vpatch("import", "--git", where, "a..b")

    code = 1 if (here / where).exists() else 2
    assert (refused.code, refused.err.count("\n")) == (code, 1), refused.err

"""`vpatch.testing.patches` in a run of pytest: a case for each patch file and release, and a sentence if it fails."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from vpatch import testing
from vpatch.errors import Failure
from vpatch.porting.proof import Unproven

from tests.loopback import IndexServer, index, make_wheel, settings

__all__ = ["index", "settings"]

MODULE = "vllm/names.py"
CODE = 'def known(name):\n    return name in ("a", "b")\n'
MERGED, MOVED = CODE.replace('"b"', '"b", "c"'), CODE.replace("known", "is_known")
RELEASES = {"1.0": CODE, "1.1": MERGED, "1.2": MERGED, "1.3": MOVED}
PATCH = f"""Format: 1
Subject: Know c
Base: 1.0
Releases: 1.0 pending, 1.1-1.2 merged, 1.3 drifted

--- {MODULE}
@@ known
 (
     "a",
     "b",
+    "c",
 )
"""
HEAD = re.compile("Base: .*\n(Releases: .*\n)?")
PATCHES = {
    "right": PATCH,
    "drifts": HEAD.sub("Base: 1.3\n", PATCH),
    "wrong": HEAD.sub("Base: 1.0\nReleases: 1.0-1.1 pending, 1.7-1.9 pending\n", PATCH),
    "adds": HEAD.sub("Base: 1.0\n", PATCH) + "+++ vllm/_vpatch/more.py\n+raise SystemExit\n",
}


@pytest.fixture
def here(tmp_path: Path, index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository with patch files and their test, and an index with the releases."""
    index.files.clear()
    for release, code in RELEASES.items():
        files = {MODULE: code.encode(), "vllm-1.0.dist-info/METADATA": f"Name: vllm\nVersion: {release}\n".encode()}
        index.publish(f"vllm-{release}-py3-none-any.whl", make_wheel(files, release=f"vllm-{release}"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    repository = tmp_path / "repository"
    (repository / "patches").mkdir(parents=True)
    for name, text in PATCHES.items():
        (repository / f"patches/{name}.vpatch").write_text(text)
    monkeypatch.chdir(repository)
    testing._on_index.cache_clear()
    yield repository
    testing._on_index.cache_clear()


def run(here: Path, *arguments: str) -> tuple[int, dict[str, str], str]:
    """Run pytest as a user does; return its exit code, the results of the cases and all that it prints."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments]
    ran = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    return ran.returncode, dict(re.findall(r"\[(\S+)\] +(?:<- \S+ )?([A-Z]+)", ran.stdout)), ran.stdout


@pytest.mark.deep
def test_a_case_for_each_patch_file_and_release(here: Path) -> None:
    (here / "test_patches.py").write_text('from vpatch.testing import patches\n\ntest_patches = patches("patches")\n')

    code, cases, out = run(here)

    assert (code, cases) == (
        1,
        {
            "adds-1.0-pending": "PASSED",
            "drifts-1.3-pending": "FAILED",
            "right-1.0-pending": "PASSED",
            "right-1.1-merged": "PASSED",
            "right-1.2-merged": "PASSED",
            "right-1.3-drifted": "PASSED",
            "wrong-1.0-pending": "PASSED",
            "wrong-1.1-pending": "FAILED",
            "wrong-1.7-pending": "FAILED",
        },
    )
    assert [line for line in out.splitlines() if " on vLLM " in line and not line.startswith("FAILED")] == [
        f"patches/drifts.vpatch on vLLM 1.3: expected pending, found drifted: {MODULE}: no 'known' here; "
        "nearest: 'is_known'",
        "patches/wrong.vpatch on vLLM 1.1: expected pending, found merged: already there: "
        "the code equals the overlay's result, without its marks",
        "patches/wrong.vpatch on vLLM 1.7: expected pending, found no state: no such release: vllm 1.7: "
        "the index has 1.1, 1.2, 1.3",
    ]


def test_the_patches_of_the_project(here: Path) -> None:
    (here / "vpatch.toml").write_text('patches = ["patches/right.vpatch"]\n')
    (here / "tests").mkdir()
    (here / "tests/test_patches.py").write_text("from vpatch.testing import patches\n\ntest_patches = patches()\n")

    code, cases, out = run(here / "tests")

    assert (code, len(cases)) == (0, 4), out


def problem(case: int = 0, name: str = "right") -> str:
    """Return what is wrong with a case of a patch, without a run of pytest."""
    (mark,) = testing.patches(f"patches/{name}.vpatch").pytestmark  # type: ignore[attr-defined]
    return str(mark.args[1][case].problem())


@pytest.mark.parametrize(
    ("step", "error", "says"),
    [
        ("hold_applied", Unproven("revert would leave a file changed"), "and it is, but revert would leave a file"),
        ("hold_merged", Unproven("where the change is made already, it is pending"), "and it is, but where the change"),
        ("hold_applied", RuntimeError("conflict: an edit"), "found no state: conflict: an edit"),
    ],
)
def test_what_a_pending_patch_must_do(
    here: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception, says: str
) -> None:
    def fails(*_: object) -> None:
        raise error

    assert problem() == ""
    monkeypatch.setattr(testing, step, fails)

    assert f"patches/right.vpatch on vLLM 1.0: expected pending, {says}" in problem()[: 60 + len(says)]


def test_a_data_file_that_upstream_has_is_merged(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its companion, which upstream never has, does not count."""
    asked = list[Mapping[str, bytes]]()
    (here / "patches/data.vpatch").write_text("Format: 1\nSubject: x\nBase: 1.0\n\n+++ vllm/a.json\n+{}\n")
    assert problem(name="data") == ""
    monkeypatch.setattr(testing, "hold_merged", lambda _engine, after, _read: asked.append(after))

    assert problem(name="data") == ""
    assert asked == [{"vllm/a.json": b"{}\n"}]


def test_an_index_that_does_not_answer(here: Path, index: IndexServer) -> None:
    """The cases fail, and not the whole run of pytest."""
    index.stop()

    assert "on vLLM 1.0: expected pending, found no state: package index failed: " in problem()


def test_no_patch_files(here: Path) -> None:
    (here / "patches/wrong.vpatch").write_text("Format: 1\nSubject: x\n")

    with pytest.raises(Failure, match=r"cannot load overlay: patches/wrong\.vpatch: line 2: the head lacks Base"):
        testing.patches("patches")
    with pytest.raises(Failure, match="no such file or folder"):
        testing.patches("nowhere")
    with pytest.raises(Failure, match=r"no patch files: .*: name a folder, or write one into vpatch\.toml"):
        testing.patches()

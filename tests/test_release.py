"""The workflow that publishes the package: its steps, run on a real build; its scripts; its permissions."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.conftest import unchanged
from tests.matrix.git_server import git
from tests.needs import need
from tests.paths import ROOT, copy_sources
from tests.workflows import bash, step, workflow

TAG, SOURCE = "v9.8.7", "https://github.com/vpatch/vpatch"
SECTION = "### Added\n\n- A thing, in [a page](docs/images.md#limits) and\n  two lines.\n"
GH = """#!/bin/bash
printf '%s\\n' "$*" >> "$GH_HOME/asked"
if [ "$2" = view ]; then test -f "$GH_HOME/released"; fi
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job's checkout at a release tag, with its environment and with the package built."""
    need("git")
    folder = tmp_path_factory.mktemp("release") / "checkout"
    copy_sources(folder, (".ci", "builder", "patches", "pyproject.toml", "README.md", "LICENSE", ".gitignore"))
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## Unreleased\n\n## 9.8.7 - 2026-11-30\n\n{SECTION}\n## 9.8.6\n\n- x\n"
    )
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "some")
    git(folder, "tag", TAG)
    ran = bash(step("release", "build", "build")["run"], folder, TAG=TAG)
    assert ran.returncode == 0, ran.stderr
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_builds_the_package_and_what_is_said_of_it(checkout: Path) -> None:
    assert names(checkout / "dist") == ["vpatch-9.8.7-py3-none-any.whl", "vpatch-9.8.7.tar.gz"]
    assert names(checkout / "about") == ["notes.md", "vpatch.cdx.json"]
    assert (checkout / "about/notes.md").read_text() == (
        f"### Added\n\n- A thing, in [a page]({SOURCE}/blob/{TAG}/docs/images.md#limits) and two lines.\n"
    )


@pytest.mark.deep
def test_the_same_commit_gives_the_same_files(checkout: Path) -> None:
    with unchanged(checkout):
        shutil.rmtree(checkout / "dist")
        shutil.rmtree(checkout / "about")
        assert bash(step("release", "build", "build")["run"], checkout, TAG=TAG).returncode == 0


def test_the_bill_of_materials_of_the_wheel(checkout: Path) -> None:
    text = (checkout / "about/vpatch.cdx.json").read_text()
    found = json.loads(text)
    wheel, parts = found["metadata"]["component"], {one["name"]: one for one in found["components"]}
    data = (checkout / "dist/vpatch-9.8.7-py3-none-any.whl").read_bytes()

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert (wheel["name"], wheel["version"]) == ("vpatch", "9.8.7")
    assert wheel["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]
    assert wheel["licenses"] == [{"expression": "Apache-2.0"}]
    required = {name for name, one in parts.items() if one["scope"] == "required"}
    assert required == {"click", "libcst", "packaging", "rich"}
    assert parts["gitpython"]["scope"] == "optional"
    assert parts["click"]["properties"] == [{"name": "vpatch:requirement", "value": "click>=8.2"}]
    assert "pytest" not in parts, "users do not install what tests need"
    (edges,) = (one["dependsOn"] for one in found["dependencies"] if one["ref"] == "wheel")
    assert sorted(edges) == sorted(parts)


def test_a_tag_that_is_not_the_version_is_refused(checkout: Path) -> None:
    ran = bash(step("release", "build", "build")["run"], checkout, TAG="v9.8.8")

    assert ran.returncode == 1
    assert ran.stderr.endswith("v9.8.8: the wheel has another version: dist/vpatch-9.8.7-py3-none-any.whl\n")


notes = runpy.run_path(str(ROOT / ".ci/notes.py"))["notes"]
LINKED = "- [x](#here), [y](https://a.example/b), [z](LICENSE)"


@pytest.mark.parametrize(
    ("heading", "section", "expected"),
    [
        ("1.2.0", "- one\n  and its end\n- two\n\n  more,\n  longer", "- one and its end\n- two\n\n  more, longer"),
        ("1.2.0 - 2026-01-01", "Some text,\nlonger.\n\n### Fixed\nIt.", "Some text, longer.\n\n### Fixed\nIt."),
        ("[1.2.0] - 2026-01-01", "| a | b |\n|---|---|\n| 1 | 2 |", "| a | b |\n|---|---|\n| 1 | 2 |"),
        ("1.2.0", LINKED, LINKED.replace("(LICENSE", f"({SOURCE}/blob/v1.2.0/LICENSE")),
    ],
)
def test_the_notes_of_a_release(heading: str, section: str, expected: str) -> None:
    changelog = f"# Changelog\n\n## Unreleased\n\n- no\n\n## {heading}\n\n{section}\n\n## 1.1.0\n\n- no\n"

    assert notes(changelog, "v1.2.0", SOURCE) == f"{expected}\n"
    assert notes(changelog.partition("## 1.1.0")[0], "v1.2.0", SOURCE) == f"{expected}\n"


@pytest.mark.parametrize(
    "changelog", ["## 1.2.01\n\n- x\n", "## 1.2.0\n\n\n## 1.1.0\n\n- x\n", "## Unreleased\n\n- 1.2.0\n"]
)
def test_a_release_without_notes_is_refused(changelog: str) -> None:
    with pytest.raises(SystemExit, match=r"CHANGELOG.md: it has no section, or an empty one, on 1\.2\.0"):
        notes(changelog, "v1.2.0", SOURCE)


@pytest.mark.deep
def test_the_package_is_tested_as_it_was_built(checkout: Path, tmp_path: Path) -> None:
    """Wheel and sdist, in a folder without the sources, by the package index."""
    (tmp_path / "dist").symlink_to(checkout / "dist")
    ran = bash(step("release", "test", "test")["run"], tmp_path)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("vpatch 9.8.7\n") == 2


@pytest.mark.parametrize(
    ("tag", "exists", "asked"),
    [
        ("v9.8.7", False, "create v9.8.7 --verify-tag --title vpatch 9.8.7 --notes-file about/notes.md"),
        ("v9.8.7", True, "edit v9.8.7 --title vpatch 9.8.7 --notes-file about/notes.md"),
        (
            "v9.8rc1",
            False,
            "create v9.8rc1 --verify-tag --title vpatch 9.8rc1 --notes-file about/notes.md --prerelease",
        ),
    ],
)
def test_the_release_on_github(tmp_path: Path, tag: str, asked: str, *, exists: bool) -> None:
    for name in ("dist/a.whl", "dist/a.tar.gz", "about/notes.md", "about/vpatch.cdx.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    if exists:
        (tmp_path / "released").touch()
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ran = bash(step("release", "release", "release")["run"], tmp_path, TAG=tag, PATH=path, GH_HOME=str(tmp_path))

    assert ran.returncode == 0, ran.stderr
    upload = f"release upload {tag} dist/a.tar.gz dist/a.whl about/vpatch.cdx.json --clobber"
    assert (tmp_path / "asked").read_text().splitlines() == [f"release view {tag}", f"release {asked}", upload]


def test_code_of_ours_runs_only_where_nothing_can_be_published_and_before_that() -> None:
    """The jobs that can sign or write get files, and run actions and `gh`."""
    jobs: dict[str, dict[str, Any]] = workflow("release")["jobs"]
    able = {name: json.dumps(job["steps"]) for name, job in jobs.items() if "write" in job["permissions"].values()}

    assert workflow("release")["permissions"] == {}
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "build": {"contents": "read"},
        "test": {},
        "publish": {"id-token": "write"},
        "attest": {"id-token": "write", "attestations": "write"},
        "release": {"contents": "write"},
    }
    assert jobs["publish"]["environment"] == "pypi"
    assert able.keys() == {"publish", "attest", "release"}
    assert not [name for name, text in able.items() if re.search(r"checkout@|\bpip\b|\bpython|\.ci/|\.venv", text)]
    assert not [one for job in jobs.values() for one in job["steps"] if "${{" in one.get("run", "")]
    assert [one["run"] for one in jobs["build"]["steps"] if one.get("run", "").endswith("install")] == [".ci/install"]
    assert {"build", "test"} <= {*jobs["publish"]["needs"]} & {*jobs["attest"]["needs"]}
    assert set(jobs["release"]["needs"]) == {"publish", "attest"}
    assert not any("if" in job for name, job in jobs.items() if name != "build")


def test_files_are_published_and_attested_as_they_were_uploaded() -> None:
    build, publish, attest = (workflow("release")["jobs"][name]["steps"] for name in ("build", "publish", "attest"))
    bill = {"predicate-type": "https://cyclonedx.org/bom", "predicate-path": "about/vpatch.cdx.json"}

    assert {one["with"]["name"]: one["with"]["path"] for one in build if "upload-" in one.get("uses", "")} == {
        "dist": "dist",
        "about": "about",
    }
    assert [one["with"] for one in publish if "gh-action-pypi-publish" in one["uses"]] == [{"attestations": True}]
    assert [one["with"] for one in attest if "attest" in one["uses"]] == [
        {"subject-path": "dist/*"},
        {"subject-path": "dist/*.whl", **bill},
    ]


@pytest.mark.parametrize(
    ("tag", "starts"), [("v1.2.3", True), ("v10.20.30", True), ("v1.2.3rc1", True), ("v1", False), ("vx.1.2", False)]
)
def test_a_whole_version_starts_it(tag: str, *, starts: bool) -> None:
    for name in ("release", "publish"):
        (pattern,) = workflow(name)["on"]["push"]["tags"]
        # GitHub's filters: a dot is itself, `*` is any text, the rest is as in regular expressions.
        assert (re.fullmatch(pattern.replace(".", r"\.").replace("*", "[^/]*"), tag) is not None) is starts

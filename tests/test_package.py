"""The package as users get it: its version, the content of wheel and sdist, its metadata, and a run from the wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.conftest import environment
from tests.matrix.git_server import git
from tests.needs import need
from tests.paths import ROOT
from tests.processes import UNWATCHED

PACKAGES = {"vpatch": "builder/vpatch", "vpatch_overlays": "patches/vpatch_overlays"}
URLS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
BUILDING = ("pyproject.toml", "README.md", "LICENSE", ".gitattributes", ".git_archival.txt", ".gitignore")


def hatch(folder: Path, *arguments: str | Path) -> str:
    """Run the build backend in a project's folder, without isolation or network; return what it prints to stdout."""
    command = [sys.executable, "-m", "hatchling", *arguments]
    environment = {**os.environ, **UNWATCHED}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's wheel."""
    folder = tmp_path_factory.mktemp("built")
    hatch(ROOT, "build", "-t", "wheel", "-d", folder)
    return only(folder, "*.whl")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked sdist."""
    folder = tmp_path_factory.mktemp("source")
    hatch(ROOT, "build", "-t", "sdist", "-d", folder)
    subprocess.run(["tar", "-xf", only(folder, "*.tar.gz"), "-C", folder], check=True)
    return only(folder, "*/")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A source tree without git, with what the version depends on."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in BUILDING:
        shutil.copy(ROOT / name, folder)
    return folder


def commit(project: Path, *tags: str) -> None:
    need("git")
    if not (project / ".git").exists():
        git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "some", "--allow-empty")
    for tag in tags:
        git(project, "tag", tag)


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("commits", "version", "archived"),
    [
        ([], r"0\.0\.0", ""),
        ([()], r"0\.0\.1\.dev1\+g[0-9a-f]+", r"0\.0\.1\.dev0\+g[0-9a-f]{7,}"),
        ([("v1.2.3", "v1", "v2-images")], r"1\.2\.3", r"1\.2\.3"),
        ([("v1.2.3",), ("v9",)], r"1\.2\.4\.dev1\+g[0-9a-f]+", ""),
    ],
)
def test_the_version_is_that_of_the_tag(
    project: Path, tmp_path: Path, commits: list[tuple[str, ...]], version: str, archived: str
) -> None:
    """Of a tree without git, of clones, and of GitHub's archives, from which it also runs actions: `git archive`."""
    for tags in commits:
        commit(project, *tags)

    assert re.fullmatch(version, hatch(project, "version"))
    if archived:
        (tmp_path / "unpacked").mkdir()
        subprocess.run(["git", "archive", "-o", tmp_path / "a.tar", "HEAD"], cwd=project, check=True)
        subprocess.run(["tar", "-xf", tmp_path / "a.tar", "-C", tmp_path / "unpacked"], check=True)
        assert re.fullmatch(archived, hatch(tmp_path / "unpacked", "version"))


def test_the_wheel_has_every_file_of_both_packages_and_leads_to_the_repository(wheel: Path) -> None:
    files = {
        f"{name}/{path.relative_to(ROOT / folder)}": path.read_bytes()
        for name, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = {name: data for name, data in contents(wheel).items() if ".dist-info/" not in name}

    assert {Path(name).suffix for name in files} >= {".py", ".in", ".toml", ".json", ".html", ".css", ".typed"}
    assert found == files

    about = metadata(wheel)
    assert set(URLS) == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    assert dict(url.split(", ") for url in about.get_all("Project-URL", [])) == URLS
    assert all(url.startswith(URLS["Source"]) for url in URLS.values())
    assert about["License-Expression"] == "Apache-2.0"
    assert "vllm" in about["Keywords"].split(",")
    assert about["Description-Content-Type"] == "text/markdown"
    release = f"{URLS['Source']}/blob/v{about['Version']}/"
    links = re.findall(r"\]\(([^)]*)\)", str(about.get_payload()))
    assert not [link for link in links if not re.match("https://|#", link)], "relative links, which the index breaks"
    named = {link.removeprefix(release) for link in links if link.startswith(release)}
    assert named
    assert not [name for name in named if not (ROOT / name.partition("#")[0]).exists()]


@pytest.mark.deep
def test_the_sdist_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    """It has no git, and yet the same version."""
    hatch(source, "build", "-t", "wheel", "-d", tmp_path)

    assert only(tmp_path, "*").name == wheel.name
    assert contents(only(tmp_path, "*")) == contents(wheel)


@pytest.mark.deep
def test_the_wheel_works_where_no_source_is(wheel: Path, tmp_path: Path) -> None:
    """In a new environment: the version, the catalogue, a release fetched from the index, and the overlays on it."""
    environment(tmp_path / "venv")
    uv, python = Path(sys.executable).with_name("uv"), tmp_path / "venv/bin/python"
    subprocess.run([uv, "pip", "install", "-q", "--python", python, f"{wheel}[fetch]"], cwd=tmp_path, check=True)

    def run(*arguments: str) -> str:
        command: list[str | Path] = [tmp_path / "venv/bin/vpatch", *arguments]
        env = {**os.environ, **UNWATCHED, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout

    assert run("--version") == f"vpatch {metadata(wheel)['Version']}\n"
    listed = {one["id"] for one in json.loads(run("list", "--json"))["overlays"]}
    assert listed == {path.stem.replace("_", "-") for path in (ROOT / "patches/vpatch_overlays").glob("[a-z]*.py")}
    run("fetch", "0.20.2", "tree")
    states = {one["id"]: one["state"] for one in json.loads(run("apply", "tree", "--json"))["overlays"]}
    assert states["turboquant-hybrid"] == "applied"
    run("verify", "tree")
    run("new", "my-fix")
    assert (tmp_path / "my-fix/pyproject.toml").is_file()
    run("plan", "--list")
    run("revert", "tree")

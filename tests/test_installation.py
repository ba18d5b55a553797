"""The command that adds an extra names the source and the tool of this installation, and works."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from vpatch import installation
from vpatch.installation import cannot_load, how_to_add, how_to_develop

from tests.tiers import deep, sampled

ROOT = Path(__file__).parents[1]
GIT = {"url": "https://example.org/vpatch", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}

SOURCES: dict[str, tuple[dict[str, Any] | None, list[str]]] = {
    "an index": (None, ["vpatch[fetch]"]),
    "git": (GIT, ["vpatch[fetch] @ git+https://example.org/vpatch@c0ffee"]),
    "a wheel": (
        {"url": "file:///x/vpatch-1-py3-none-any.whl", "archive_info": {}},
        ["vpatch[fetch] @ file:///x/vpatch-1-py3-none-any.whl"],
    ),
    "a folder": ({"url": "file:///my%20code/vpatch", "dir_info": {}}, ["/my code/vpatch[fetch]"]),
    "for editing": (
        {"url": "file:///x/vpatch", "dir_info": {"editable": True}},
        ["--editable", "/x/vpatch[fetch]"],
    ),
}


class Distribution:
    """The metadata of an installation."""

    def __init__(self, url: dict[str, Any] | None) -> None:
        self.url = url

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.url is None else json.dumps(self.url)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, mark: str) -> None:
    """Let vpatch be installed from git in `folder / "tool"`, by the tool that leaves the file `mark` in `folder`."""
    (folder / "tool").mkdir()
    (folder / mark).touch()
    monkeypatch.setattr(sys, "prefix", str(folder / "tool"))
    monkeypatch.setattr(installation, "distribution", lambda _: Distribution(GIT))


@pytest.mark.parametrize("source", SOURCES)
def test_the_source(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    url, words = SOURCES[source]
    monkeypatch.setattr(installation, "distribution", lambda _: Distribution(url))

    assert shlex.split(how_to_add("fetch").strip("`")) == [sys.executable, "-m", "pip", "install", *words]


VPATCH = "@ git+https://example.org/vpatch@c0ffee'"
PIP = f"{sys.executable} -m pip install"
# By the file that a tool leaves: how to add the extra `plan`, to install libcst again, and to add a project to vpatch.
TOOLS = {
    "tool/uv-receipt.toml": (
        f"uv tool install --force 'vpatch[all] {VPATCH}",
        "uv tool upgrade --reinstall-package libcst vpatch",
        f"uv tool install --force 'vpatch[all] {VPATCH} --with-editable {{}}",
    ),
    "tool/pipx_metadata.json": (
        f"pipx install --force 'vpatch[all] {VPATCH}",
        "pipx runpip vpatch install --force-reinstall --no-deps libcst",
        f"pipx inject vpatch 'vpatch[all] {VPATCH} --editable {{}}",
    ),
    "CACHEDIR.TAG": (
        f"uvx --from 'vpatch[plan] {VPATCH}",
        f"uvx --reinstall-package libcst --from 'vpatch {VPATCH} vpatch",
        f"uv tool install --force 'vpatch[fetch] {VPATCH} --with-editable {{}}",
    ),
    "none": (
        f"{PIP} 'vpatch[plan] {VPATCH}",
        f"{PIP} --force-reinstall --no-deps libcst",
        f"{PIP} 'vpatch[fetch] {VPATCH} --editable {{}}",
    ),
}


@pytest.mark.parametrize("mark", TOOLS)
def test_the_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mark: str) -> None:
    install(monkeypatch, tmp_path, mark)
    monkeypatch.chdir(tmp_path)
    add, again, develop = TOOLS[mark]

    assert how_to_add("plan").strip("`").startswith(add)
    says = f"cannot load libcst: {sys.executable}: file too short; install it again: `{again}`"
    assert str(cannot_load("libcst", ImportError("file too short"))) == says
    python = '"$(uv tool dir)/vpatch/bin/python"' if mark == "CACHEDIR.TAG" else sys.executable
    assert how_to_develop(Path("my-fix")) == (develop.format(f"'{tmp_path}/my-fix[test]'"), python)


def test_the_interpreter_is_named_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the files are: `.venv/bin/python3`."""
    python = Path(sys.executable)
    monkeypatch.chdir(python.parents[2])

    assert how_to_develop(Path("my-fix"))[1] == str(Path(*python.parts[-3:]))


RECEIPT = """
[tool]
requirements = [
    { name = "vpatch", extras = ["image"], git = "https://example.org/vpatch" },
    { name = "one", extras = ["test"], editable = "/x/one" },
    { name = "two", directory = "/x/two" },
    { name = "three", git = "https://example.org/three?rev=v1" },
    { name = "four", specifier = ">=4" },
]
"""


def test_what_uv_installed_beside_vpatch_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, "tool/uv-receipt.toml")
    (tmp_path / "tool/uv-receipt.toml").write_text(RECEIPT)
    one, two = ["--with-editable", "/x/one[test]"], ["--with", "two @ /x/two"]
    others = [*two, "--with", "three @ git+https://example.org/three@v1", "--with", "four>=4"]

    assert shlex.split(how_to_add("plan").strip("`"))[5:] == [*one, *others]
    assert shlex.split(how_to_develop(Path("/x/one"))[0])[5:] == [*others, *one]


def test_an_environment_without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "find_spec", lambda _: None)

    assert how_to_add("git").startswith(f"`uv pip install --python {sys.executable} ")


UV = Path(sys.executable).with_name("uv")
WAYS = ("uvx", "pip")


@pytest.mark.parametrize("way", [deep(way) for way in sampled(WAYS, 2)])
def test_the_hint_works(tmp_path: Path, way: str) -> None:
    """Installed without the extra, `vpatch fetch` prints a command; that command installs it, and `fetch` works.

    So do the commands that `vpatch new` prints: they install the new project beside vpatch, and its tests pass.
    """
    made = tmp_path / "venv"
    home = {
        "UV_CACHE_DIR": tmp_path / "cache",
        "UV_TOOL_DIR": tmp_path / "tools",
        "UV_TOOL_BIN_DIR": tmp_path / "tools/bin",
        "UV_NO_CONFIG": "1",
        "PATH": f"{made / 'bin'}:{tmp_path / 'tools/bin'}:{UV.parent}:{os.environ['PATH']}",
    }
    environment = {**os.environ, **{name: str(value) for name, value in home.items()}}

    def run(*command: str | Path, code: int = 0) -> str:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert ran.returncode == code, ran.stderr
        return ran.stderr

    program: list[str | Path] = [made / "bin/vpatch"]
    match way:
        case "pip":
            venv.create(made, with_pip=True)
            run(made / "bin/pip", "install", "-q", ROOT)
        case "uvx":
            program = ["uvx", "--python", sys.executable, "--from", ROOT, "vpatch"]

    said = run(*program, "fetch", "0.20.2", "first", code=1)
    hint = said.rpartition("not installed: `")[2].partition("`")[0]
    words = shlex.split(hint)
    run(*words, *(["--version"] if way == "uvx" else []))
    run(*(words if way == "uvx" else program), "fetch", "0.20.2", "second")

    assert (tmp_path / "second/vllm/__init__.py").is_file()

    said = run(*program, "new", "my-fix", "--vllm", "0.20.2")
    for step in re.findall("`(.*?)`", said):
        run("bash", "-c", step)

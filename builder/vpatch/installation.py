"""How this vpatch was installed, and the commands that add one of its extras, or install one of its packages again.

The source of an installation is in its `direct_url.json`, see the specification "Recording the Direct URL Origin of
installed distributions" (PEP 610); without that file it came from a package index.
"""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from vpatch.errors import Failure, Problem, shell


def how_to_add(extra: str) -> str:
    """Return the command that installs this vpatch again with an extra, from the same source and by the same tool."""
    tool, source = _tool(), _source(f"vpatch[{extra}]")
    return shell("uvx", "--from", source[-1], "vpatch") if tool == "uvx" else shell(*_install(tool), *source)


def how_to_develop(project: Path) -> tuple[str, str]:
    """Return commands for a project of overlays: one installs it beside this vpatch, with its tests, for editing.

    The project requires vpatch, which no index may have: the command names the source of this one again.

    Returns:
        The command, and then the interpreter that has both, as words for a shell.
    """
    tool, source, own = _tool(), _source("vpatch[fetch]"), f"{project.absolute()}[test]"
    if tool == "pipx":
        words = ["pipx", "inject", "vpatch", *source, "--editable", own]
    elif tool in {"uv tool", "uvx"}:
        words = [*_install("uv tool"), *source, "--with-editable", own]
    else:
        words = [*_install(tool), *source, "--editable", own]
    python = '"$(uv tool dir)/vpatch/bin/python"' if tool == "uvx" else shlex.quote(sys.executable)
    return shlex.join(words), python


def cannot_load(package: str, error: ImportError) -> Failure:
    """Return the failure of a package that is installed and broken, with the command that installs it again."""
    tool, anew = _tool(), ["--force-reinstall", "--no-deps", package]
    commands = {
        "pipx": ["pipx", "runpip", "vpatch", "install", *anew],
        "uv tool": ["uv", "tool", "upgrade", "--reinstall-package", package, "vpatch"],
        "uvx": ["uvx", "--reinstall-package", package, "--from", _source("vpatch")[-1], "vpatch"],
        "pip": [*_install("pip"), *anew],
        "uv": [*_install("uv"), "--reinstall-package", package, package],
    }
    cause = f"{error}; install it again: {shell(*commands[tool])}"
    return Failure(Problem(f"cannot load {package}", sys.executable, cause))


def _install(tool: str) -> list[str]:
    """Return the beginning of the command by which a tool installs into this environment, or makes it anew."""
    return {
        "pipx": ["pipx", "install", "--force"],
        "uv tool": ["uv", "tool", "install", "--force"],
        "pip": [sys.executable, "-m", "pip", "install"],
        "uv": ["uv", "pip", "install", "--python", sys.executable],
    }[tool]


def _tool() -> str:
    """Return the tool that made this environment, or that installs into it."""
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").is_file():
        return "pipx"
    if (prefix / "uv-receipt.toml").is_file():
        return "uv tool"
    if any((folder / "CACHEDIR.TAG").is_file() for folder in prefix.parents):  # uvx makes its environments there
        return "uvx"
    return "pip" if find_spec("pip") else "uv"


def _source(name: str) -> list[str]:
    """Return the words that name the source of `name`, vpatch with its extras, for an installer.

    The last one is the requirement; `--editable` stands before it if vpatch is installed for editing.
    """
    text = distribution("vpatch").read_text("direct_url.json")
    if text is None:
        return [name]
    found: dict[str, Any] = json.loads(text)
    url = found["url"]
    if "dir_info" in found:
        editable = ["--editable"] if found["dir_info"].get("editable") else []
        return [*editable, f"{unquote(urlsplit(url).path)}{name.removeprefix('vpatch')}"]
    if vcs := found.get("vcs_info"):
        return [f"{name} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"]
    return [f"{name} @ {url}"]

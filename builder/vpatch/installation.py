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
    source, editable = _requirement(f"vpatch[{extra}]")
    to_edit = ["--editable", source] if editable else [source]
    commands = {
        "pipx": ["pipx", "install", "--force", *to_edit],
        "uv tool": ["uv", "tool", "install", "--force", *to_edit],
        "uvx": ["uvx", "--from", source, "vpatch"],
        "pip": [sys.executable, "-m", "pip", "install", *to_edit],
        "uv": ["uv", "pip", "install", "--python", sys.executable, *to_edit],
    }
    return shell(*commands[_tool()])


def how_to_develop(project: Path) -> tuple[str, str]:
    """Return commands for a project of overlays: one installs it beside this vpatch, with its tests, for editing.

    The project requires vpatch, which no index may have: the command names the source of this one again.

    Returns:
        The command, and then the interpreter that has both, as words for a shell.
    """
    source, editable = _requirement("vpatch[fetch]")
    to_edit, own = ["--editable", source] if editable else [source], f"{project.absolute()}[test]"
    as_tool = ["uv", "tool", "install", "--force", *to_edit, "--with-editable", own]
    commands = {
        "pipx": ["pipx", "inject", "vpatch", *to_edit, "--editable", own],
        "uv tool": as_tool,
        "uvx": as_tool,
        "pip": [sys.executable, "-m", "pip", "install", *to_edit, "--editable", own],
        "uv": ["uv", "pip", "install", "--python", sys.executable, *to_edit, "--editable", own],
    }
    tool = _tool()
    python = '"$(uv tool dir)/vpatch/bin/python"' if tool == "uvx" else shlex.quote(sys.executable)
    return shlex.join(commands[tool]), python


def cannot_load(package: str, error: ImportError) -> Failure:
    """Return the failure of a package that is installed and broken, with the command that installs it again."""
    anew = ["--force-reinstall", "--no-deps", package]
    commands = {
        "pipx": ["pipx", "runpip", "vpatch", "install", *anew],
        "uv tool": ["uv", "tool", "upgrade", "--reinstall-package", package, "vpatch"],
        "uvx": ["uvx", "--reinstall-package", package, "--from", _requirement("vpatch")[0], "vpatch"],
        "pip": [sys.executable, "-m", "pip", "install", *anew],
        "uv": ["uv", "pip", "install", "--python", sys.executable, "--reinstall-package", package, package],
    }
    cause = f"{error}; install it again: {shell(*commands[_tool()])}"
    return Failure(Problem(f"cannot load {package}", sys.executable, cause))


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


def _requirement(name: str) -> tuple[str, bool]:
    """Return the requirement that names the source of `name`, vpatch with its extras; and whether it is for editing."""
    text = distribution("vpatch").read_text("direct_url.json")
    if text is None:
        return name, False
    found: dict[str, Any] = json.loads(text)
    url = found["url"]
    if "dir_info" in found:
        return f"{unquote(urlsplit(url).path)}{name.removeprefix('vpatch')}", bool(found["dir_info"].get("editable"))
    if vcs := found.get("vcs_info"):
        return f"{name} @ {vcs['vcs']}+{url}@{vcs['commit_id']}", False
    return f"{name} @ {url}", False

"""How this vpatch was installed, and the commands that add one of its extras, or install one of its packages again.

The source of an installation is in its `direct_url.json`, see the specification "Recording the Direct URL Origin of
installed distributions" (PEP 610); without that file it came from a package index.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from vpatch.errors import Failure, Problem, shell
from vpatch.foreign import TOML_BYTES, parse_json, parse_toml, read_regular
from vpatch.wrapping import from_here

# Their commands make the environment anew: with one extra, they would remove the others.
_MADE_ANEW = frozenset({"uv tool", "pipx"})


_DAMAGED = (ValueError, LookupError, TypeError, AttributeError)  # what a document of another shape raises


def how_to_add(extra: str) -> str:
    """Return the command that installs this vpatch again with an extra, from the same source and by the same tool."""
    tool = _tool()
    source = _source(f"vpatch[{'all' if tool in _MADE_ANEW else extra}]")
    if tool == "uvx":
        return shell("uvx", "--from", source[-1], "vpatch")
    return shell(*_install(tool), *source, *_beside())


@contextmanager
def needing(extra: str, task: str) -> Iterator[None]:
    """Turn a failed import into a `Failure`: the task cannot be done without the extra, which it names."""
    try:
        yield
    except ImportError as error:
        raise Failure(Problem(task, str(error.name), f"not installed: {how_to_add(extra)}")) from error


def before_fetching() -> str:
    """Return a clause on what a command that reads releases needs first; "" if it is installed."""
    return "" if find_spec("pypi_simple") else f", after {how_to_add('fetch')}"


def how_to_develop(project: Path) -> tuple[str, str]:
    """Return commands for a project of overlays: one installs it beside this vpatch, with its tests, for editing.

    The project requires vpatch, which no index may have: the command names the source of this one again.

    Returns:
        The command, and then the interpreter that has both, as words for a shell in the current folder.
    """
    tool, own = _tool(), f"{project.absolute()}[test]"
    source = _source(f"vpatch[{'all' if tool in _MADE_ANEW else 'fetch'}]")
    if tool == "pipx":
        words = ["pipx", "inject", "vpatch", *source, "--editable", own]
    elif tool in {"uv tool", "uvx"}:
        words = [*_install("uv tool"), *source, *_beside(but=project.absolute()), "--with-editable", own]
    else:
        words = [*_install(tool), *source, "--editable", own]
    if tool == "uvx":
        return shlex.join(words), '"$(uv tool dir)/vpatch/bin/python"'
    return shlex.join(words), shlex.quote(from_here(Path(sys.executable)))


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
    hint = f"install it again: {shell(*commands[tool])}"
    return Failure(Problem(f"cannot load {package}", sys.executable, str(error), hint=hint))


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


def _beside(but: Path | None = None) -> list[str]:
    """Return the options of `uv tool install` for what it has installed beside vpatch, except the project `but`."""
    try:
        receipt = parse_toml(read_regular(Path(sys.prefix, "uv-receipt.toml"), TOML_BYTES))
        return _required(receipt.get("tool", {}).get("requirements", ()), but)
    except (OSError, *_DAMAGED):  # most often: it is no tool of uv
        return []


def _required(requirements: Iterable[dict[str, Any]], but: Path | None) -> list[str]:
    words: list[str] = []
    for one in requirements:
        extras = f"[{','.join(one['extras'])}]" if "extras" in one else ""
        if one["name"] == "vpatch" or one.get("editable") == str(but):
            continue
        if "editable" in one:
            words += ["--with-editable", f"{one['editable']}{extras}"]
        elif place := one.get("directory") or one.get("path") or one.get("url"):
            words += ["--with", f"{one['name']}{extras} @ {place}"]
        elif "git" in one:
            words += ["--with", f"{one['name']}{extras} @ git+{one['git'].replace('?rev=', '@')}"]
        else:
            words += ["--with", f"{one['name']}{extras}{one.get('specifier', '')}"]
    return words


def _source(name: str) -> list[str]:
    """Return the words that name the source of `name`, vpatch with its extras, for an installer.

    The last one is the requirement; `--editable` stands before it if vpatch is installed for editing.
    """
    try:
        text = distribution("vpatch").read_text("direct_url.json")
        return [name] if text is None else _recorded(parse_json(text), name)
    except _DAMAGED:
        return [name]


def _recorded(found: dict[str, Any], name: str) -> list[str]:
    url = found["url"]
    if "dir_info" in found:
        editable = ["--editable"] if found["dir_info"].get("editable") else []
        return [*editable, f"{unquote(urlsplit(url).path)}{name.removeprefix('vpatch')}"]
    if vcs := found.get("vcs_info"):
        return [f"{name} @ {vcs['vcs']}+{url}@{vcs['commit_id']}"]
    return [f"{name} @ {url}"]

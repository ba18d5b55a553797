"""How this vpatch was installed, and the command that adds one of its extras.

The source of an installation is in its `direct_url.json`, see the specification "Recording the Direct URL Origin of
installed distributions" (PEP 610); without that file it came from a package index.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from vpatch.errors import shell


def how_to_add(extra: str) -> str:
    """Return the command that installs this vpatch again with an extra, from the same source and by the same tool."""
    prefix = Path(sys.prefix)
    source, editable = _requirement(extra)
    to_edit = ["--editable", source] if editable else [source]
    if (prefix / "pipx_metadata.json").is_file():
        words = ["pipx", "install", "--force", *to_edit]
    elif (prefix / "uv-receipt.toml").is_file():
        words = ["uv", "tool", "install", "--force", *to_edit]
    elif any((folder / "CACHEDIR.TAG").is_file() for folder in prefix.parents):  # uvx makes its environments there
        words = ["uvx", "--from", source, "vpatch"]
    elif find_spec("pip"):
        words = [sys.executable, "-m", "pip", "install", *to_edit]
    else:  # an environment of uv
        words = ["uv", "pip", "install", "--python", sys.executable, *to_edit]
    return shell(*words)


def _requirement(extra: str) -> tuple[str, bool]:
    """Return the requirement that names the source with the extra, and whether it is installed for editing."""
    name = f"vpatch[{extra}]"
    text = distribution("vpatch").read_text("direct_url.json")
    if text is None:
        return name, False
    found: dict[str, Any] = json.loads(text)
    url = found["url"]
    if "dir_info" in found:
        return f"{unquote(urlsplit(url).path)}[{extra}]", bool(found["dir_info"].get("editable"))
    if vcs := found.get("vcs_info"):
        return f"{name} @ {vcs['vcs']}+{url}@{vcs['commit_id']}", False
    return f"{name} @ {url}", False

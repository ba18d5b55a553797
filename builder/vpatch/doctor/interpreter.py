"""The interpreter that would run vLLM: its version, and where it looks for code. It is run, but imports nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from vpatch.errors import Failure
from vpatch.foreign import parse_json
from vpatch.tree.locate import ask

# `python -c` also searches the current folder, which programs do not.
_SCRIPT = """
import sys
sys.path[:] = [p for p in sys.path if p]
import importlib.util, json, site
spec = importlib.util.find_spec("vllm")
own = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
startup = [getattr(sys.modules.get(name), "__file__", None) for name in ("sitecustomize", "usercustomize")]
print(json.dumps({
    "version": ".".join(map(str, sys.version_info[:3])),
    "prefix": sys.prefix,
    "path": sys.path,
    "sites": site.getsitepackages() + own,
    "startup": [file for file in startup if file],
    "vllm": list(spec.submodule_search_locations or []) if spec else [],
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter, as it describes itself.

    Attributes:
        python: the program.
        version: its version, "3.12.3".
        prefix: the folder of its environment.
        paths: the folders that it imports from, in order.
        sites: the folders whose `.pth` files it reads when it starts.
        startup: the files of `sitecustomize` and `usercustomize` that it ran when it started.
        root: the resolved folder from which it imports `vllm`; None if it has none.
    """

    python: Path
    version: str
    prefix: Path
    paths: tuple[Path, ...]
    sites: tuple[Path, ...]
    startup: tuple[Path, ...]
    root: Path | None


def describe(python: Path) -> Interpreter:
    """Ask an interpreter for its paths.

    Raises:
        Failure: it does not answer.
    """
    told = ask(python, _SCRIPT)
    return Interpreter(
        python,
        told["version"],
        Path(told["prefix"]),
        tuple(dict.fromkeys(map(Path, told["path"]))),
        tuple(dict.fromkeys(map(Path, told["sites"]))),
        tuple(map(Path, told["startup"])),
        Path(told["vllm"][0]).parent.resolve() if told["vllm"] else None,
    )


def interpreter_of(root: Path) -> Interpreter | None:
    """Find the interpreter whose site-packages or dist-packages folder this is; None if there is no such interpreter.

    The folder of a checkout, or of sources that were fetched, belongs to no interpreter.
    """
    found = re.fullmatch(r"(.*)/lib(?:64)?/(python3[.\d]*)/(?:site|dist)-packages", str(root))
    if not found:
        return None
    prefixes = dict.fromkeys((Path(found[1] or "/"), Path("/usr")))  # Debian's own Python also reads /usr/local
    for python in (prefix / "bin" / name for prefix in prefixes for name in (found[2], "python3", "python")):
        if not python.is_file():
            continue
        try:
            told = describe(python)
        except Failure:
            continue
        if root in [site.resolve() for site in told.sites]:
            return told
    return None


def editable_source(direct_url: str | bytes | None) -> Path | None:
    """Return the folder that a package is installed from for editing, by its `direct_url.json`; None for others."""
    try:
        said = parse_json(direct_url or "{}")
        return Path(unquote(urlsplit(said["url"]).path)) if said["dir_info"]["editable"] else None
    except (ValueError, TypeError, LookupError, AttributeError):
        return None

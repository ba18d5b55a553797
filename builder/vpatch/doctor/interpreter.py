"""The interpreter that would run vLLM: its version, and where it looks for code.

It is asked, importing nothing, if vpatch may run it. Otherwise its environment's files are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vpatch.tree import sites
from vpatch.tree.environment import Environment
from vpatch.tree.locate import ask

_SCRIPT = """
import importlib.util, json, site, sys
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
    """A Python interpreter, as it describes itself or as the files of its environment do.

    Attributes:
        python: the program.
        version: its version, "3.12.3"; from files, it may also be "3.12", or "" if they do not show it.
        prefix: the folder of its environment.
        paths: the folders that it imports from, in order.
        sites: the folders whose `.pth` files it reads when it starts.
        startup: the files of `sitecustomize` and `usercustomize` that it runs when it starts.
        root: the resolved folder from which it imports `vllm`; None if it has none.
    """

    python: Path
    version: str
    prefix: Path
    paths: tuple[Path, ...]
    sites: tuple[Path, ...]
    startup: tuple[Path, ...]
    root: Path | None


def described(environment: Environment) -> Interpreter:
    """Describe the interpreter of an environment, which is run only if it may be.

    Raises:
        Failure: it does not answer, or its environment has more than one vLLM.
    """
    return _asked(environment.python) if environment.may_run else _read(environment)


def _asked(python: Path) -> Interpreter:
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


def _read(environment: Environment) -> Interpreter:
    prefix, first = environment.folder, [folder.resolve() for folder in pythonpath()]
    path, own = [*first, *sites.search_path(prefix)], sites.own_sites(prefix)
    root = next((folder for folder in first if (folder / "vllm/__init__.py").is_file()), None)
    root = root or sites.import_root(prefix)
    about = (sites.version_of(prefix), prefix, tuple(path), tuple(own), tuple(_startup(path)))
    return Interpreter(environment.python, *about, root)


def pythonpath() -> list[Path]:
    """List the folders of this shell's PYTHONPATH."""
    return [Path(entry).absolute() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _startup(path: list[Path]) -> Iterator[Path]:
    for name in ("sitecustomize.py", "usercustomize.py"):
        yield from [folder / name for folder in path if (folder / name).is_file()][:1]

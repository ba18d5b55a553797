"""Where this interpreter would import vLLM from, and what else it says of itself. Nothing of vLLM is imported for that.

The interpreter of a vLLM runs this file as text: it imports the standard library only.
"""

from __future__ import annotations

import importlib.util
import json
import site
import sys
import types
from itertools import accumulate


def describe(without: str = "") -> None:
    """Print, as JSON, the fields of `vpatch.tree.interpreter.Interpreter`.

    Args:
        without: an entry of `sys.path`; "behind" is the folder of the `vllm` that would be imported without it.
    """
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    startup = [getattr(sys.modules.get(name), "__file__", None) for name in ("sitecustomize", "usercustomize")]
    answer = {
        "version": ".".join(map(str, sys.version_info[:3])),
        "prefix": sys.prefix,
        "paths": sys.path[:],
        "sites": [*getattr(site, "getsitepackages", list)(), *user],  # environments of an old virtualenv lack it
        "startup": [file for file in startup if file],
        "vllm": _folder(),
    }
    sys.path[:] = [path for path in sys.path if path != without]
    sys.stdout.write(json.dumps({**answer, "behind": _folder()}) + "\n")


def _folder() -> str | None:
    """Return the folder of the package `vllm`, which to find imports nothing; None without one."""
    spec = importlib.util.find_spec("vllm")
    return next(iter(spec.submodule_search_locations or []), None) if spec else None


def module_of(file: str) -> str:
    """Return the name by which a file, relative to the folder that holds `vllm/`, is imported."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def origin(name: str) -> str | None:
    """Return the file that a module would be imported from, without importing what is above it; None without one."""
    folders: list[str] | None = None
    spec = None
    for above in accumulate(name.split("."), "{}.{}".format):
        spec = next(filter(None, (finder.find_spec(above, folders) for finder in sys.meta_path)), None)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or [])
        # Namespace packages look up their parent in `sys.modules`.
        sys.modules[above] = types.ModuleType(above)
        sys.modules[above].__path__ = folders
    return spec.origin if spec else None

"""Find the vLLM that this interpreter would import without a farm, and whether a farm is for it.

`vpatch run` copies this file into its farms, beside `vpatch_receipt`: it needs the standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any


def foreign(
    told: Mapping[str, Any], farm: Path, manifest: str, release_at: Callable[[Path], Mapping[str, str]]
) -> Iterator[str]:
    """Yield a line if this interpreter is of another environment, which has inherited a farm on PYTHONPATH.

    Another copy of the same release is no other vLLM: below `uv run`, each worker of Ray has an environment of its own.

    Args:
        told: the manifest of the farm.
        farm: its folder.
        manifest: as in `stock_root`.
        release_at: returns the release of the vLLM in a folder, as the manifest has it.
    """
    stock, release = stock_root(manifest), told["release"]
    if stock == os.path.realpath(told["root"]):
        return
    if not stock or not release["modules"] or release_at(Path(stock)) != release:
        has = f"imports the one in {stock}" if stock else "has none"
        way = f"start it without {farm} on PYTHONPATH, or with a `vpatch run` of its own"
        yield f"the overlays are for the vLLM in {told['root']}, and {sys.executable} {has}: {way}"


def stock_root(manifest: str) -> str:
    """Return the folder, without links, that holds the `vllm` which this interpreter would import; "" if it has none.

    Args:
        manifest: the name of a file that a folder on the path has if it is a farm.
    """
    path = [entry for entry in sys.path if not _is_farm(entry, manifest)]
    # All finders are asked, as Python does: an editable install has one of its own. Those that ignore `path` may find
    # the farm.
    for find in [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]:
        spec = find("vllm", path)
        places = list(spec.submodule_search_locations or []) if spec else []
        root = os.path.dirname(os.path.realpath(places[0])) if places else ""  # noqa: PTH120 - as `sys.path` has it
        if root and not _is_farm(root, manifest):
            return root
    return ""


def _is_farm(folder: str, manifest: str) -> bool:
    return os.path.isfile(os.path.join(folder, manifest))  # noqa: PTH113, PTH118 - as above

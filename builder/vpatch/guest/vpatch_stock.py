"""Find the vLLM that this interpreter would import without a farm.

`vpatch run` copies this file into its farms, beside `vpatch_receipt`: it needs the standard library only.
"""

from __future__ import annotations

import os
import sys


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

"""The order of `--kv-cache-dtype-skip-layers`, whose entries are layer indices or names of kinds of layers.

Imported by `vllm/engine/arg_utils.py`: nothing heavy at module level.
"""

from __future__ import annotations


def skip_layer_order(entry: str) -> tuple[bool, int, str]:
    """Return a sort key: layer indices come first, by number, then all other entries, by text.

    Entries for the same layer, such as "3" and "03", are sorted by text: they come from a set, whose order differs
    between processes.
    """
    try:
        return False, int(entry), entry
    except ValueError:
        return True, 0, entry

"""The order of `--kv-cache-dtype-skip-layers`, whose entries are layer indices or names of kinds of layers.

Imported by `vllm/engine/arg_utils.py`: nothing heavy at module level.
"""

from __future__ import annotations


def skip_layer_order(entry: str) -> tuple[bool, int, str]:
    """Give the key that sorts layer indices by number, and behind them, by text, whatever `int` does not read.

    Entries for the same layer, as "3" and "03", are ordered by text: they come from a set, whose order changes from
    process to process.
    """
    try:
        return False, int(entry), entry
    except ValueError:
        return True, 0, entry

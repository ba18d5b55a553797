"""TurboQuant with `--kv-cache-dtype-skip-layers sliding_window`, or any entry that is no layer index.

With a TurboQuant KV cache, vLLM 0.20 to 0.31 adds the boundary layers to that list and sorts it by number: an entry
that names a kind of layer dies there with a ValueError, though the layers that read the list know such names. Now
indices come first, ordered as before, and names behind them. A list of indices keeps its order, and with it the hashes
that it goes into. The pull request that mended it upstream is not known.

It is about the list alone. Which models a KV cache of both kinds of layer can be made for is another matter: until 0.28
at least, full-attention layers in TurboQuant cannot share a cache with sliding-window layers, whether these are skipped
by name or by index (vllm-project/vllm#54599).
"""

from vpatch import Companion, Edits, Need, Overlay, Part, Use, probe

from vpatch_overlays import _shared as shared
from vpatch_overlays._shared import arg_utils, create_engine_config, turboquant_branch

helper = Companion(f"{shared.COMPANIONS}.turboquant_skip_list")

# The list sorted as text, as from 0.32 on. The part is merged if this is there, and nothing is sorted by a key.
BY_TEXT = """
cache_config.kv_cache_dtype_skip_layers = sorted(set(cache_config.kv_cache_dtype_skip_layers) | set(boundary))
"""


def sorts_by(key: str) -> Edits:
    """Replace the key by which upstream sorts the list."""
    return [
        turboquant_branch.replace_expression(
            f"sorted(existing | set(boundary), key={key})", "sorted(existing | set(boundary), key=skip_layer_order)"
        ),
        helper.import_into(arg_utils, "skip_layer_order"),
    ]


def needed(use: Use) -> Need:
    """Return that no plan needs the overlay: a plan names no layers to skip."""
    cause = "no layers are named to be left unquantized" if use.turboquant else f"the KV cache is {use.kv_cache_dtype}"
    return Need(needed=False, because=cause)


overlay = Overlay(
    summary="TurboQuant with names, as `sliding_window`, in the list of layers to leave unquantized.",
    symptoms=("ValueError: invalid literal for int() with base 10: 'sliding_window'",),
    needed=needed,
    releases={
        ">=0.18,<0.20": "not_applicable: there is no TurboQuant KV cache yet",
        ">=0.20,<0.32": "pending: the list is sorted by number",
        ">=0.32": "merged: the list is sorted as text",
    },
    probes=(probe(shared.PROBES, "turboquant_skip_list"),),
    parts=(
        Part(
            "order",
            merged=create_engine_config.contains(BY_TEXT) & ~create_engine_config.contains("sorted(..., key=...)"),
            absent=shared.no_turboquant,
            shapes={"0.21": sorts_by("int"), "0.20": sorts_by("lambda x: int(x)")},
        ),
    ),
)

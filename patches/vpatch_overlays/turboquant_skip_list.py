"""TurboQuant with `--kv-cache-dtype-skip-layers sliding_window`, or any entry that is no layer index.

With a TurboQuant KV cache, vLLM 0.20 to 0.31 adds the boundary layers to that list and sorts it by number: an entry
that names a kind of layer dies there with a ValueError, though the layers that read the list know such names. Now
indices come first, ordered as before, and names behind them. A list of indices keeps its order, and with it the hashes
that it goes into. The pull request that mended it upstream is not known.

It is about the list alone. Which models a KV cache of both kinds of layer can be made for is another matter: until 0.28
at least, full-attention layers in TurboQuant cannot share a cache with sliding-window layers, whether these are skipped
by name or by index (vllm-project/vllm#54599).
"""

from vpatch import (
    All,
    Contains,
    EnsureImport,
    Lists,
    Need,
    Not,
    Overlay,
    Part,
    ReplaceExpr,
    Shape,
    Use,
    companion,
    probe,
)

ARG_UTILS = "vllm/engine/arg_utils.py"
CACHE_CONFIG = "vllm/config/cache.py"

CREATE = "EngineArgs.create_engine_config"
TURBOQUANT = ('if resolved_cache_dtype.startswith("turboquant_")',)

BY_TEXT = """
cache_config.kv_cache_dtype_skip_layers = sorted(set(cache_config.kv_cache_dtype_skip_layers) | set(boundary))
"""


def sorts_by(key: str, since: str) -> Shape:
    """Give the shape of upstream's code that sorts by `key`."""
    return Shape(
        name=since,
        edits=(
            EnsureImport(ARG_UTILS, "from vllm._vpatch.turboquant_skip_list import skip_layer_order"),
            ReplaceExpr(
                ARG_UTILS,
                CREATE,
                old=f"sorted(existing | set(boundary), key={key})",
                new="sorted(existing | set(boundary), key=skip_layer_order)",
                within=TURBOQUANT,
            ),
            companion("vpatch_overlays.companions", "turboquant_skip_list"),
        ),
    )


def needed(use: Use) -> Need:
    """Say whether a use is one that names layers to skip; a plan has none."""
    cause = "no layers are named to be left unquantised" if use.turboquant else f"the KV cache is {use.kv_cache_dtype}"
    return Need(needed=False, because=cause)


overlay = Overlay(
    summary="TurboQuant with names, as `sliding_window`, in the list of layers to leave unquantised.",
    needed=needed,
    releases={
        ">=0.18,<0.20": "not_applicable: there is no TurboQuant KV cache yet",
        ">=0.20,<0.32": "pending: the list is sorted by number",
        ">=0.32": "merged: the list is sorted as text",
    },
    probes=(probe("vpatch_overlays.probes", "turboquant_skip_list"),),
    parts=(
        Part(
            name="order",
            merged=All(
                (
                    Contains(ARG_UTILS, CREATE, BY_TEXT),
                    Not(Contains(ARG_UTILS, CREATE, "sorted(..., key=...)")),
                )
            ),
            absent=Not(Lists(CACHE_CONFIG, "CacheDType", "turboquant_*")),
            shapes=(sorts_by("int", "0.21"), sorts_by("lambda x: int(x)", "0.20")),
        ),
    ),
)

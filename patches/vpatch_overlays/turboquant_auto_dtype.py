"""TurboQuant KV cache on the V1 model runner of vLLM 0.25 and 0.26, which every hybrid model uses.

To give layers of `--kv-cache-dtype-skip-layers` unquantised tensors, that runner takes the cache dtype to be "auto"
where a layer's spec has no quantisation mode. TurboQuant's specs have none either, so that every start dies with
"Unknown TurboQuant cache dtype: 'auto'". Now their class tells them apart, as in the V2 runner since
vllm-project/vllm#47609. Sliding-window layers that are not in the skip list die there as before: TurboQuant has no spec
for them, and its kernels ignore the window.
"""

from vpatch import All, AnyOf, Contains, EnsureImport, Lists, Need, Not, Overlay, Part, ReplaceExpr, Shape, Use, probe

ATTENTION = "vllm/model_executor/layers/attention/attention.py"
CACHE_CONFIG = "vllm/config/cache.py"
INTERFACE = "vllm/v1/kv_cache_interface.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"

RESHAPE = "GPUModelRunner._reshape_kv_cache_tensors"
SPEC = "Attention.get_kv_cache_spec"
UNQUANTISED = "kv_cache_spec.kv_quant_mode == KVQuantMode.NONE"

has_mode = Contains(INTERFACE, "get_kv_quant_mode", 'kv_cache_dtype.startswith("turboquant_")')
has_spec = Contains(ATTENTION, SPEC, "TQFullAttentionSpec(...)")
tells_mode = Contains(ATTENTION, SPEC, "TQFullAttentionSpec(..., kv_quant_mode=quant_mode, tq_slot_size=...)")
passes_dtype = Contains(
    RUNNER, RESHAPE, "attn_backend.get_kv_cache_shape(..., cache_dtype_str=self.cache_config.cache_dtype)"
)


def needed(use: Use) -> Need:
    """Say whether a use is one that dies on the V1 model runner of 0.25 and 0.26."""
    if not use.turboquant:
        return Need(needed=False, because=f"the KV cache is {use.kv_cache_dtype}, not TurboQuant's")
    runner = "hybrid models run on the V1 runner" if use.hybrid else "the model may run on the V1 runner"
    return Need(needed=True, because=f"the KV cache is TurboQuant's, and {runner}")


overlay = Overlay(
    summary="TurboQuant KV cache on the V1 model runner, hybrid models in particular.",
    upstream=("vllm-project/vllm#50533",),
    needed=needed,
    releases={
        ">=0.18,<0.20": "not_applicable: there is no TurboQuant KV cache yet",
        ">=0.20,<0.25": "not_applicable: the runner passes the cache dtype as it is",
        ">=0.25,<0.27": 'pending: the runner takes TurboQuant\'s cache dtype to be "auto"',
        ">=0.27": "merged: #50533, TurboQuant has a quantisation mode of its own",
    },
    probes=(probe("vpatch_overlays.probes", "turboquant_auto_dtype"),),
    parts=(
        Part(
            name="cache-dtype",
            merged=All((has_mode, AnyOf((tells_mode, Not(has_spec))))),
            absent=AnyOf((Not(Lists(CACHE_CONFIG, "CacheDType", "turboquant_*")), passes_dtype)),
            shapes=(
                Shape(
                    name="0.25",
                    when=All((Not(has_mode), has_spec, Not(tells_mode))),
                    edits=(
                        EnsureImport(RUNNER, "from vllm.v1.kv_cache_interface import TQFullAttentionSpec"),
                        ReplaceExpr(
                            RUNNER,
                            RESHAPE,
                            old=UNQUANTISED,
                            new=f"{UNQUANTISED} and not isinstance(kv_cache_spec, TQFullAttentionSpec)",
                        ),
                    ),
                ),
            ),
        ),
    ),
)

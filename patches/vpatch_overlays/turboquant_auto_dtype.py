"""TurboQuant KV cache on the V1 model runner of vLLM 0.25 and 0.26, which every hybrid model uses.

To give layers of `--kv-cache-dtype-skip-layers` unquantized tensors, that runner takes the cache dtype to be "auto"
where a layer's spec has no quantization mode. TurboQuant's specs have none either, so that every start dies with
"Unknown TurboQuant cache dtype: 'auto'". Now their class tells them apart, as in the V2 runner since
vllm-project/vllm#47609. Sliding-window layers that are not in the skip list die there as before: TurboQuant has no spec
for them, and its kernels ignore the window.

That crash also stopped TurboQuant with speculative decoding, which computes wrong attention in two cases: in CUDA
graphs of whole decode steps, and with asynchronous scheduling, the default with MTP and EAGLE. `turboquant-mtp`, also a
default overlay, corrects both. Without it, a patched vLLM refuses to start in these cases, on the V2 runner too, and
names what helps: that overlay, `enforce_eager`, `async_scheduling` off, another KV cache type. Everything else starts,
eager ngram speculation among it.
"""

from itertools import product

from vpatch import AnyOf, File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared
from vpatch_overlays._shared import runner

reshape = runner.function("GPUModelRunner._reshape_kv_cache_tensors")
quant_mode = File("vllm/v1/kv_cache_interface.py").function("get_kv_quant_mode")
get_spec = File("vllm/model_executor/layers/attention/attention.py").function("Attention.get_kv_cache_spec")

UNQUANTIZED = "kv_cache_spec.kv_quant_mode == KVQuantMode.NONE"
TQ = "TQFullAttentionSpec"

# Correct guards, in every spelling: no quantization mode and no spec of TurboQuant's selects "auto".
NO_MODE = (UNQUANTIZED, "KVQuantMode.NONE == kv_cache_spec.kv_quant_mode", UNQUANTIZED.replace("==", "is"))
SOME_MODE = (UNQUANTIZED.replace("==", "!="), UNQUANTIZED.replace("==", "is not"))
IS_TQ = tuple(f"isinstance(kv_cache_spec, {named})" for named in (TQ, f"(..., {TQ}, ...)", f"(...).{TQ}"))
GUARDED = (
    *(f'"auto" if {none} and not {tq} else ...' for none, tq in product(NO_MODE, IS_TQ)),
    *(f'"auto" if not {tq} and {none} else ...' for none, tq in product(NO_MODE, IS_TQ)),
    *(f'... if {some} or {tq} else "auto"' for some, tq in product(SOME_MODE, IS_TQ)),
    *(f'... if {tq} or {some} else "auto"' for some, tq in product(SOME_MODE, IS_TQ)),
    *(f'... if {tq} else "auto" if {none} else ...' for none, tq in product(NO_MODE, IS_TQ)),
)

# TurboQuant has a quantization mode of its own: vllm-project/vllm#50533, from 0.27 on.
has_mode = quant_mode.contains('kv_cache_dtype.startswith("turboquant_")')
# Layers with TurboQuant have a spec of its own class: from 0.20 to 0.27.
has_spec = get_spec.contains("TQFullAttentionSpec(...)")
# This spec has the mode, too, as in 0.27.
tells_mode = get_spec.contains("TQFullAttentionSpec(..., kv_quant_mode=quant_mode, tq_slot_size=...)")
# The V1 runner passes the cache dtype of the whole cache for every layer: up to 0.24.
passes_dtype = reshape.contains("attn_backend.get_kv_cache_shape(..., cache_dtype_str=self.cache_config.cache_dtype)")
# The V1 runner's function knows TurboQuant's spec in some way; no release does.
names_spec = reshape.contains(TQ) | reshape.contains(f"(...).{TQ}")
# The V1 runner takes "auto" only for a spec without mode that is not TurboQuant's, in one of the spellings above.
guards_spec = (
    names_spec
    & AnyOf((runner.imports(TQ), reshape.imports(TQ), reshape.contains(f"(...).{TQ}")))
    & AnyOf(tuple(map(reshape.contains, GUARDED)))
)


def needed(use: Use) -> Need:
    """Return whether this use fails on the V1 model runner of 0.25 and 0.26."""
    where = "hybrid models run on the V1 runner" if use.hybrid else "the model may run on the V1 runner"
    return shared.not_turboquant(use) or Need(needed=True, because=f"the KV cache is TurboQuant's, and {where}")


overlay = Overlay(
    summary="TurboQuant KV cache on the V1 model runner, hybrid models in particular.",
    symptoms=("ValueError: Unknown TurboQuant cache dtype: 'auto'. Valid presets: ...",),
    upstream=("vllm-project/vllm#50533",),
    needed=needed,
    releases={
        ">=0.18,<0.20": "not_applicable: there is no TurboQuant KV cache yet",
        ">=0.20,<0.25": "not_applicable: the runner passes the cache dtype as it is",
        ">=0.25,<0.27": 'pending: the runner takes TurboQuant\'s cache dtype to be "auto"',
        ">=0.27": "merged: #50533, TurboQuant has a quantization mode of its own",
    },
    probes=(probe(shared.PROBES, "turboquant_auto_dtype"),),
    parts=(
        Part(
            "cache-dtype",
            # TurboQuant's spec has the mode (from 0.28 on, it is one for all modes), or the runner asks for its class.
            merged=has_mode & (tells_mode | ~has_spec) | guards_spec,
            absent=shared.no_turboquant | passes_dtype.means("this vLLM passes the cache dtype"),
            shapes={
                "0.25": Shape(
                    when=~has_mode & has_spec & ~tells_mode & ~names_spec & shared.knows_speculation,
                    edits=[
                        runner.ensure_import(f"from vllm.v1.kv_cache_interface import {TQ}"),
                        reshape.replace_expression(
                            UNQUANTIZED, f"{UNQUANTIZED} and not isinstance(kv_cache_spec, {TQ})"
                        ),
                        shared.refusal,
                    ],
                ),
            },
        ),
    ),
)

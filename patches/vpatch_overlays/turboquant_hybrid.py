"""TurboQuant KV cache on hybrid models: Qwen3.5, Qwen3.6, Qwen3-Next, Jamba and the like.

vLLM 0.20 refuses `--kv-cache-dtype turboquant_*` for models that mix attention with Mamba or linear attention. Its
boundary layers are one reason: TurboQuant leaves the first and the last layers of a model unquantized, so that
attention layers have pages of two sizes. The block size is the other: it is computed from unquantized keys and values,
and vLLM cannot make the pages of attention and of states equal. With the overlay, a hybrid model has no boundary
layers, and its block size is computed from the packed slot that TurboQuant stores for a token.

With speculative decoding, vLLM 0.20 cannot capture CUDA graphs of whole decode steps: TurboQuant copies the length of
each request to the host, which a capture forbids. `turboquant-mtp`, also a default overlay, has vLLM capture graphs of
the steps' pieces. Without it, a patched vLLM refuses to start with graphs of whole steps, and names what helps: that
overlay, `enforce_eager` or another KV cache type.
"""

from vpatch import Companion, File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared

config = File("vllm/model_executor/layers/quantization/turboquant/config.py")
skip_layers = config.function("TurboQuantConfig.get_boundary_skip_layers")
align = File("vllm/platforms/interface.py").function("Platform._align_hybrid_block_size")
helper = Companion(f"{shared.COMPANIONS}.turboquant_hybrid")

accepts_hybrids = """
-if model_config.is_hybrid:
-    raise NotImplementedError(
-        "TurboQuant KV cache is not supported for hybrid (attention + Mamba) models. "
-        "Boundary layer protection requires uniform attention layers."
-    )
@@
-TurboQuantConfig.get_boundary_skip_layers(num_layers)
+TurboQuantConfig.get_boundary_skip_layers(model_config)
"""
takes_the_model = '''
-@staticmethod
-def get_boundary_skip_layers(num_layers: int, n: int = 2) -> list[str]:
-    if n <= 0 or num_layers <= 0:
-        return []
-    n = min(n, num_layers // 2)
-    ...
-    indices = sorted(set(first + last))
-    return [str(i) for i in indices]
+@staticmethod
+def get_boundary_skip_layers(model_config: ModelConfig, n: int = 2) -> list[str]:
+    """Return the layers to leave unquantized: the first and last n of a dense model, none of a hybrid."""
+    return boundary_skip_layers(model_config, n)
'''
# Nothing in vLLM uses it: the tests of #39931 import the companion's function by this name of upstream's.
PRIVATE = "full_attention_layer_indices as _get_full_attention_layer_indices"

IS_TURBOQUANT = 'cache_config.cache_dtype.startswith("turboquant_")'
PAGE_SIZE = f"""
if {IS_TURBOQUANT} and not model_config.use_mla:
    from vllm._vpatch.turboquant_hybrid import attention_page_size_of_one_token

    attn_page_size_1_token = attention_page_size_of_one_token(vllm_config)
"""
# vLLM's own refusal of hybrid models, as in 0.20 or with another message.
refuses_hybrids = shared.create_engine_config.contains("if model_config.is_hybrid:\n    raise NotImplementedError(...)")


def needed(use: Use) -> Need:
    """Return whether vLLM 0.20 refuses this use."""
    if use.turboquant and not use.hybrid:
        return Need(needed=False, because="every layer of the model is attention")
    return shared.not_turboquant(use) or Need(needed=True, because="the model is hybrid, with a TurboQuant KV cache")


boundary_layers = Part(
    "boundary-layers",
    # #39931: the method takes the model, and nothing refuses hybrid models.
    merged=skip_layers.takes_first("model_config") & ~refuses_hybrids,
    absent=shared.no_turboquant,
    shapes={
        "0.20": Shape(
            when=shared.knows_speculation,  # which `refusal` asks
            edits=[
                config.defer_annotations(),
                config.ensure_import("from typing import TYPE_CHECKING"),
                config.ensure_import("from vllm.config import ModelConfig", typing_only=True),
                config.class_("TurboQuantConfig").patch(takes_the_model),
                shared.turboquant_branch.patch(accepts_hybrids),
                helper.import_into(config, "boundary_skip_layers", PRIVATE),
                shared.refusal,  # of wrong attention with speculation; vLLM's own, of hybrids, is gone by then
            ],
        )
    },
)
page_size = Part(
    "page-size",
    # #39931, or a later form of it: a branch for TurboQuant asks its spec or its backend for the size of a page.
    merged=align.contains(IS_TURBOQUANT)
    & (align.contains("TQFullAttentionSpec(...)") | align.contains("TurboQuantAttentionBackend")),
    absent=shared.no_turboquant,
    shapes={
        "0.20": Shape(
            # The edit finds its place with or without upstream's branch.
            when=~align.contains(IS_TURBOQUANT),
            edits=[align.insert_before("model_cls, _ = ModelRegistry.resolve_model_cls(...)", PAGE_SIZE), helper.files],
        )
    },
)

overlay = Overlay(
    summary="TurboQuant KV cache on hybrid (attention + Mamba) models.",
    symptoms=(
        "NotImplementedError: TurboQuant KV cache is not supported for hybrid (attention + Mamba) models. "
        "Boundary layer protection requires uniform attention layers.",
    ),
    upstream=("vllm-project/vllm#39931",),
    needed=needed,
    releases={
        ">=0.18,<0.20": "not_applicable: there is no TurboQuant KV cache yet",
        ">=0.20,<0.21": "pending: hybrid models are refused, and the block size is computed from unquantized pages",
        ">=0.21": "merged: #39931",
    },
    probes=(probe(shared.PROBES, "turboquant_hybrid"), probe(shared.PROBES, "turboquant_hybrid_serve", gpu=True)),
    parts=(boundary_layers, page_size),
)

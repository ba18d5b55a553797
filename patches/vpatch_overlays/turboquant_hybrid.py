"""TurboQuant KV cache on hybrid models: Qwen3.5, Qwen3.6, Qwen3-Next, Jamba and the like.

vLLM 0.20 refuses `--kv-cache-dtype turboquant_*` for models that mix attention with Mamba or linear attention. It
need not: without boundary layers every attention layer has the same page, once the block size is computed from the
packed slot that TurboQuant stores instead of from unquantized keys and values.

With speculative decoding, CUDA graphs of whole decode steps cannot be captured on 0.20: TurboQuant reads the length of
each request from the device. `turboquant-mtp`, also a default overlay, has vLLM capture other graphs. Without it, a
patched vLLM refuses to start with such graphs, and names what helps: that overlay, `enforce_eager` or another KV cache
type.
"""

from vpatch import Companion, File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared

config = File("vllm/model_executor/layers/quantization/turboquant/config.py")
skip_layers = config.function("TurboQuantConfig.get_boundary_skip_layers")
align = File("vllm/platforms/interface.py").function("Platform._align_hybrid_block_size")
helper = Companion(f"{shared.COMPANIONS}.turboquant_hybrid")

REFUSAL = """
if model_config.is_hybrid:
    raise NotImplementedError(
        "TurboQuant KV cache is not supported for hybrid (attention + Mamba) models. "
        "Boundary layer protection requires uniform attention layers."
    )
"""
CALL = "TurboQuantConfig.get_boundary_skip_layers"
INDICES = "full_attention_layer_indices"
boundary_skip_layers = '''
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
IS_TURBOQUANT = 'cache_config.cache_dtype.startswith("turboquant_")'
PAGE_SIZE = f"""
if {IS_TURBOQUANT} and not model_config.use_mla:
    from vllm._vpatch.turboquant_hybrid import attention_page_size_of_one_token

    attn_page_size_1_token = attention_page_size_of_one_token(vllm_config)
"""
refuses = shared.create_engine_config.contains("if model_config.is_hybrid:\n    raise NotImplementedError(...)")


def needed(use: Use) -> Need:
    """Return whether vLLM 0.20 refuses this use."""
    if use.turboquant and not use.hybrid:
        return Need(needed=False, because="every layer of the model is attention")
    return shared.not_turboquant(use) or Need(needed=True, because="the model is hybrid, and its KV cache TurboQuant's")


boundary_layers = Part(
    "boundary-layers",
    merged=skip_layers.takes_first("model_config") & ~refuses,
    absent=shared.no_turboquant,
    shapes={
        "0.20": Shape(
            when=shared.knows_speculation,
            edits=[
                config.defer_annotations(),
                config.ensure_import("from typing import TYPE_CHECKING"),
                config.ensure_import("from vllm.config import ModelConfig", typing_only=True),
                config.class_("TurboQuantConfig").patch(boundary_skip_layers),
                shared.turboquant_branch.delete(REFUSAL),
                shared.turboquant_branch.replace_expression(f"{CALL}(num_layers)", f"{CALL}(model_config)"),
                # The second name is private, but upstream's tests import it.
                helper.import_into(config, "boundary_skip_layers", f"{INDICES} as _get_{INDICES}"),
                shared.refusal,
            ],
        )
    },
)
page_size = Part(
    "page-size",
    merged=align.contains(IS_TURBOQUANT)
    & (align.contains("TQFullAttentionSpec(...)") | align.contains("TurboQuantAttentionBackend")),
    absent=shared.no_turboquant,
    shapes={
        "0.20": Shape(
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

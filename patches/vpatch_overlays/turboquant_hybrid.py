"""TurboQuant KV cache on hybrid models: Qwen3.5, Qwen3.6, Qwen3-Next, Jamba and the like.

vLLM 0.20 refuses `--kv-cache-dtype turboquant_*` for models that mix attention with Mamba or linear attention. It
need not: without boundary layers every attention layer has the same page, once the block size is computed from the
packed slot that TurboQuant stores instead of from unquantised keys and values.

With speculative decoding, CUDA graphs of whole decode steps cannot be captured on 0.20: TurboQuant reads the length of
each request from the device. There a patched vLLM refuses to start, and names what helps: `enforce_eager` or another KV
cache type.
"""

from vpatch import (
    All,
    AnyOf,
    Contains,
    DeleteStatements,
    EnsureFutureAnnotations,
    EnsureImport,
    InsertBefore,
    Lists,
    Need,
    Not,
    Overlay,
    Part,
    ReplaceExpr,
    ReplaceFunction,
    Shape,
    Takes,
    Use,
    companion,
    probe,
)

from vpatch_overlays._speculation import NOTE_ON_0_20, knows_speculation, refusal

ARG_UTILS = "vllm/engine/arg_utils.py"
CACHE_CONFIG = "vllm/config/cache.py"
INTERFACE = "vllm/platforms/interface.py"
TQ_CONFIG = "vllm/model_executor/layers/quantization/turboquant/config.py"

CREATE = "EngineArgs.create_engine_config"
ALIGN = "Platform._align_hybrid_block_size"
SKIP_LAYERS = "TurboQuantConfig.get_boundary_skip_layers"
TURBOQUANT = ('if resolved_cache_dtype.startswith("turboquant_")',)

REFUSAL = """
if model_config.is_hybrid:
    raise NotImplementedError(
        "TurboQuant KV cache is not supported for hybrid (attention + Mamba) models. "
        "Boundary layer protection requires uniform attention layers."
    )
"""

# The name is private, and yet upstream's tests import it.
INDICES = "full_attention_layer_indices as _get_full_attention_layer_indices"

GET_BOUNDARY_SKIP_LAYERS = '''
@staticmethod
def get_boundary_skip_layers(model_config: ModelConfig, n: int = 2) -> list[str]:
    """Layers to leave unquantised: the first and last n of a dense model, none of a hybrid."""
    return boundary_skip_layers(model_config, n)
'''

IS_TURBOQUANT = 'cache_config.cache_dtype.startswith("turboquant_")'

PAGE_SIZE = f"""
if {IS_TURBOQUANT} and not model_config.use_mla:
    from vllm._vpatch.turboquant_hybrid import attention_page_size_of_one_token

    attn_page_size_1_token = attention_page_size_of_one_token(vllm_config)
"""

no_turboquant = Not(Lists(CACHE_CONFIG, "CacheDType", "turboquant_*"))
helpers = companion("vpatch_overlays.companions", "turboquant_hybrid")


def needed(use: Use) -> Need:
    """Say whether a use is one that 0.20 refuses."""
    if not use.turboquant:
        return Need(needed=False, because=f"the KV cache is {use.kv_cache_dtype}, not TurboQuant's")
    if not use.hybrid:
        return Need(needed=False, because="every layer of the model is attention")
    return Need(needed=True, because="the model is hybrid, and its KV cache TurboQuant's")


overlay = Overlay(
    summary="TurboQuant KV cache on hybrid (attention + Mamba) models.",
    upstream=("vllm-project/vllm#39931",),
    needed=needed,
    releases={
        ">=0.18,<0.20": "not_applicable: there is no TurboQuant KV cache yet",
        ">=0.20,<0.21": "pending: hybrid models are refused, and the block size is computed from unquantised pages",
        ">=0.21": "merged: #39931",
    },
    probes=(
        probe("vpatch_overlays.probes", "turboquant_hybrid"),
        probe("vpatch_overlays.probes", "turboquant_hybrid_serve", gpu=True),
    ),
    parts=(
        Part(
            name="boundary-layers",
            merged=All(
                (
                    Takes(TQ_CONFIG, SKIP_LAYERS, "model_config", first=True),
                    Not(Contains(ARG_UTILS, CREATE, "if model_config.is_hybrid:\n    raise NotImplementedError(...)")),
                )
            ),
            absent=no_turboquant,
            shapes=(
                Shape(
                    name="0.20",
                    when=knows_speculation,
                    edits=(
                        EnsureFutureAnnotations(TQ_CONFIG),
                        EnsureImport(TQ_CONFIG, "from typing import TYPE_CHECKING"),
                        EnsureImport(TQ_CONFIG, "from vllm.config import ModelConfig", typing_only=True),
                        EnsureImport(TQ_CONFIG, "from vllm._vpatch.turboquant_hybrid import boundary_skip_layers"),
                        EnsureImport(TQ_CONFIG, f"from vllm._vpatch.turboquant_hybrid import {INDICES}"),
                        ReplaceFunction(
                            TQ_CONFIG, SKIP_LAYERS, forms=("5e16a80928df1fe1",), new=GET_BOUNDARY_SKIP_LAYERS
                        ),
                        DeleteStatements(ARG_UTILS, CREATE, REFUSAL, within=TURBOQUANT),
                        ReplaceExpr(
                            ARG_UTILS,
                            CREATE,
                            old="TurboQuantConfig.get_boundary_skip_layers(num_layers)",
                            new="TurboQuantConfig.get_boundary_skip_layers(model_config)",
                            within=TURBOQUANT,
                        ),
                        helpers,
                        *refusal,
                    ),
                    note=NOTE_ON_0_20,
                ),
            ),
        ),
        Part(
            name="page-size",
            merged=All(
                (
                    Contains(INTERFACE, ALIGN, IS_TURBOQUANT),
                    AnyOf(
                        (
                            Contains(INTERFACE, ALIGN, "TQFullAttentionSpec(...)"),
                            Contains(INTERFACE, ALIGN, "TurboQuantAttentionBackend"),
                        )
                    ),
                )
            ),
            absent=no_turboquant,
            shapes=(
                Shape(
                    name="0.20",
                    when=Not(Contains(INTERFACE, ALIGN, IS_TURBOQUANT)),
                    edits=(
                        InsertBefore(
                            INTERFACE,
                            ALIGN,
                            anchor="model_cls, _ = ModelRegistry.resolve_model_cls(...)",
                            new=PAGE_SIZE,
                        ),
                        helpers,
                    ),
                ),
            ),
        ),
    ),
)

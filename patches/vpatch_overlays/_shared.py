"""Code that several overlays share: predicates, needs, and the edits that refuse wrong attention.

Some overlays remove a crash that also stopped TurboQuant with speculative decoding, which computes wrong attention in
every release. Each of them adds `refusal` to the shapes that remove the crash. No release has two such shapes, so no
two overlays add the same statement. With `turboquant-mtp`, which corrects attention, nothing is refused.
"""

from vpatch import Companion, File, Need, Use

COMPANIONS = "vpatch_overlays.companions"
PROBES = "vpatch_overlays.probes"

runner = File("vllm/v1/worker/gpu_model_runner.py")

attention = File("vllm/v1/attention/backends/turboquant_attn.py")
builder = attention.class_("TurboQuantMetadataBuilder")
builder_init = attention.function("TurboQuantMetadataBuilder.__init__")
build = attention.function("TurboQuantMetadataBuilder.build")
reserve_workspace = attention.function("TurboQuantMetadataBuilder._reserve_workspace")
# The builder takes buffers from the workspace itself: vllm-project/vllm#44053, from 0.24 on. The method that
# `turboquant-workspace` adds does not, for it reserves in its companion, which asks other overlays for sizes.
reserved_by_upstream = builder.contains("current_workspace_manager().get_simultaneous(...)")
# Upstream reserves nothing, as up to 0.23: the builder takes no buffers, and `__init__` calls no `_reserve_workspace`,
# or only that of `turboquant-workspace`. Another method of that name may reserve elsewhere, such as in a base class.
not_reserved_by_upstream = ~reserved_by_upstream & (
    ~builder_init.contains("self._reserve_workspace()")
    | reserve_workspace.contains("reserve_workspace(self, current_workspace_manager(), ...)")
)
metadata = attention.class_("TurboQuantMetadata")
# From 0.32 on UltraQuant's attention inherits from this class, and its `__init__` does not call this one. So companions
# read what an edit sets here by `getattr`, and leave a layer that lacks it to vLLM.
impl_init = attention.function("TurboQuantAttentionImpl.__init__")
forward = attention.function("TurboQuantAttentionImpl.forward")
prefill = attention.function("TurboQuantAttentionImpl._prefill_attention")
continuation = attention.function("TurboQuantAttentionImpl._continuation_prefill")
decode = attention.function("TurboQuantAttentionImpl._decode_attention")

arg_utils = File("vllm/engine/arg_utils.py")
create_engine_config = arg_utils.function("EngineArgs.create_engine_config")
turboquant_branch = create_engine_config.within('if resolved_cache_dtype.startswith("turboquant_")')

no_turboquant = (~File("vllm/config/cache.py").lists("CacheDType", "turboquant_*")).means(
    "this vLLM has no TurboQuant KV cache"
)

# `VllmConfig` sets `speculative_config`, in every release so far. Shapes whose code reads the attribute require this: a
# `refusal` that does not find it assumes that there is no speculation.
knows_speculation = File("vllm/config/vllm.py").sets("VllmConfig", "speculative_config")

refusal = (
    Companion(f"{COMPANIONS}.turboquant_speculation").import_into(attention, "refuse_wrong_attention"),
    builder_init.insert_after("super().__init__(...)", "refuse_wrong_attention(self)"),
)


def not_hybrid(use: Use) -> Need | None:
    """Return that the overlay is not needed if the model is no hybrid; None otherwise."""
    return None if use.hybrid else Need(needed=False, because="no layer of the model keeps a state")


def not_speculating(use: Use) -> Need | None:
    """Return that the overlay is not needed without speculative decoding; None otherwise."""
    return None if use.speculative_tokens else Need(needed=False, because="there is no speculative decoding")


def not_speculating_hybrid(use: Use) -> Need | None:
    """Return that the overlay is not needed without speculative decoding on a hybrid model; None otherwise."""
    return not_hybrid(use) or not_speculating(use)


def not_caching_hybrid(use: Use) -> Need | None:
    """Return that the overlay is not needed without a prefix cache of a hybrid model; None otherwise."""
    off = None if use.prefix_caching else Need(needed=False, because="prefix caching is off")
    return not_hybrid(use) or off


def not_turboquant(use: Use) -> Need | None:
    """Return that the overlay is not needed if the KV cache is not TurboQuant's; None otherwise."""
    if use.turboquant:
        return None
    return Need(needed=False, because=f"the KV cache is {use.kv_cache_dtype}, not TurboQuant's")

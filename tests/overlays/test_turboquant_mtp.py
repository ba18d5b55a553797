"""turboquant-mtp on real releases: its states, and what drifts."""

from __future__ import annotations

from vpatch.testing import State

from tests.overlays.tables import WITHOUT_TURBOQUANT, drifted, on, table

ATTENTION = "vllm/v1/attention/backends/turboquant_attn.py"
ULTRAQUANT = "vllm/v1/attention/backends/ultraquant_attn.py"
COMPILATION = "vllm/config/compilation.py"

SUPPORT = "    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH\n"
OWN_SUPPORT = """
    @classmethod
    def get_cudagraph_support(cls, vllm_config, kv_cache_spec):
        return AttentionCGSupport.NEVER
"""
LENGTHS = "_arange_cache[cached_len + 1 : seq_len + 1]"
LONGEST = "attn_metadata.max_query_len == attn_metadata.max_seq_len:"
LOWERS = "and min_cg_support.value < AttentionCGSupport.UNIFORM_BATCH.value"

CASES = (
    *WITHOUT_TURBOQUANT,
    *on(">=0.20,<0.21", State.PENDING, "fresh-prompts: matches the 0.20 layout; 6 changes"),
    *on(">=0.21,<0.32", State.PENDING, "matches the 0.21 layout; 1 change"),
    *on(">=0.32", State.PENDING, "matches the 0.32 layout; 1 change"),
    *drifted(
        "0.26.0",
        ATTENTION,
        # Upstream decides by itself which graphs TurboQuant supports.
        (SUPPORT, SUPPORT + OWN_SUPPORT, "'get_cudagraph_support' is defined already, and is another one"),
        (SUPPORT, SUPPORT.replace("UNIFORM_BATCH", "ALWAYS"), "`AttentionCGSupport.UNIFORM_BATCH` is not there; line"),
        # Half of what upstream proposes, in another form.
        (LENGTHS, "_arange_cache[1 : seq_len + 1]", f"`synth_seq_lens = {LENGTHS}` is not there"),
        (
            LONGEST,
            f"{LONGEST[:-1]} and not attn_metadata.num_decodes:",
            "has `not attn_metadata.num_decodes`, which the hunk does not have",
        ),
    ),
    *drifted("0.26.0", COMPILATION, (LOWERS, "and False", "0.20 layout")),
    # Half of what upstream may do in UltraQuant's copy.
    *drifted(
        "0.33.0",
        ULTRAQUANT,
        (LENGTHS, "_arange_cache[1 : seq_len + 1]", f"`synth_seq_lens = {LENGTHS}` is not there"),
        (
            "            and D <= _CK_MAX_HEAD_DIM",
            "            and D < _CK_MAX_HEAD_DIM",
            "D <= _CK_MAX_HEAD_DIM` is not there",
        ),
    ),
)

test_case = table("turboquant-mtp", CASES)

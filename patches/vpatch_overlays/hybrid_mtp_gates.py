"""Gated DeltaNet with speculative decoding: each verified token gets its own gates.

Gated DeltaNet decays and updates its state by two gates of each token, `a` and `b`. vLLM sorts the tokens of a step:
those that verify drafts go through one kernel, all others through another. Up to 0.27 it sorts queries, keys and values
for the first kernel, but not the gates. The kernel then takes the gates of the step's first tokens, whichever request
they belong to. There is no error. The state is wrong for a few tokens, and their log-probabilities are off by several
nats; the answer may go astray from there.

This happens in every step in which a row without drafts stands before one that verifies. vLLM puts verifying rows
first, so with most KV cache types only a row of a single token can stand before them: one whose drafts were cut
off at the end of the context, one without n-gram match, or the last token of a prompt. A TurboQuant KV cache has vLLM
sort by single tokens. There, each prompt of several chunks spoils the requests that stand behind it.

The overlay sorts the gates as well, as vLLM does from 0.28 on. Steps that only verify are left as they are: nothing is
sorted there, and they are the ones in CUDA graphs.
"""

from vpatch import Block, File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared

LAYERS = "vllm/model_executor/layers/mamba"
qwen = File(f"{LAYERS}/gdn/qwen_gdn_linear_attn.py").function("QwenGatedDeltaNetAttention._forward_core")
common = File(f"{LAYERS}/gdn_linear_attn.py").function("GatedDeltaNetAttention._forward_core")
qwen3_next = File("vllm/model_executor/models/qwen3_next.py").function("Qwen3NextGatedDeltaNet._forward_core")

# The call of the kernel that verifies drafts, with its gates.
VERIFY = """fused_sigmoid_gating_delta_rule_update(
        A_log=self.A_log,
        a={},
        b={},
        dt_bias=self.dt_bias,
        q=query_spec,
        k=key_spec,
        v=value_spec,
        initial_state=ssm_state,
        inplace_final_state=True,
        cu_seqlens=spec_query_start_loc[: attn_metadata.num_spec_decodes + 1],
        ssm_state_indices=spec_state_indices_tensor,
        num_accepted_tokens=num_accepted_tokens,
        use_qk_l2norm_in_kernel=True,
    )"""
# A gate in the order of the queries. `mixed_qkv_non_spec` is None in steps that only verify, where nothing is sorted.
SORTED = "{0} if mixed_qkv_non_spec is None else {0}.index_select(0, spec_token_indx)"

# The layer sorts queries, keys and values so, up to 0.27: what SORTED reads.
SORTS = """
if attn_metadata.num_prefills == 0 and attn_metadata.num_decodes == 0:
    mixed_qkv_spec = mixed_qkv
    mixed_qkv_non_spec = None
else:
    mixed_qkv_spec = mixed_qkv.index_select(0, spec_token_indx)
    mixed_qkv_non_spec = mixed_qkv.index_select(0, non_spec_token_indx)
"""


def sorted_gates(core: Block) -> Shape:
    """Return the shape of a layer that sorts everything but the gates."""
    gates = (SORTED.format(gate) for gate in "ab")
    return Shape(
        when=core.contains(SORTS),
        edits=core.replace_expression(VERIFY.format("a", "b"), VERIFY.format(*gates)),
    )


def needed(use: Use) -> Need:
    """Return whether the use verifies drafts in a hybrid model, whose layers may be Gated DeltaNet."""
    because = "a step with other rows verifies drafts with the gates of wrong tokens"
    return shared.not_speculating_hybrid(use) or Need(needed=True, because=because)


overlay = Overlay(
    summary="Gated DeltaNet with speculative decoding: each verified token gets its own gates.",
    symptoms=(
        "With speculative decoding, a model with Gated DeltaNet (Qwen3.5, Qwen3.6) now and then has some wrong words "
        "in an answer, and only beside other requests.",
    ),
    upstream=("vllm-project/vllm#51812", "vllm-project/vllm#36754"),
    needed=needed,
    releases={
        ">=0.18,<0.28": "pending: gates stay in the order of the step, and tokens that verify drafts do not",
        ">=0.28": "merged: gates are sorted, too",
    },
    probes=(probe(shared.PROBES, "hybrid_mtp_gates"),),
    parts=(
        Part(
            "order",
            # The layer sorts both gates, and passes them to the kernel, as from 0.28 on.
            merged=qwen.contains(VERIFY.format("a_spec", "b_spec"))
            & qwen.contains("a_spec = a.index_select(0, spec_token_indx)")
            & qwen.contains("b_spec = b.index_select(0, spec_token_indx)"),
            shapes={
                "0.22": sorted_gates(qwen),
                "0.19": sorted_gates(common),
                "0.18": sorted_gates(qwen3_next),
            },
        ),
    ),
)

"""Speculative decoding on hybrid models: a decode without drafts goes on from the last accepted one.

Layers such as Gated DeltaNet keep a state for each request and each draft token. The number of tokens that the last
step accepted selects the state to go on from. vLLM reads it for requests that verify drafts. A request that has no
drafts for a step goes on from the first state, that is, from before the drafts that the last step accepted. There is no
error. The model has forgotten some of its last tokens, so that answers drift, repeat or loop.

N-gram and suffix decoding have no drafts wherever the text does not repeat, so that this happens after each match. With
MTP it happens where drafts are dropped: near `max_model_len`, or if a grammar allows none.

With the overlay, such a row verifies 0 drafts from the state that the count selects, as vLLM does from 0.32 on. Rows of
prompts stay as they are, and so do models without such layers. CUDA graphs stay, too: those of decodes have 1 + k
tokens a row, for k drafts, so a step with these rows replays none of them, with the overlay or without.

Part `v1` is for the V1 model runner, on which hybrid models run up to 0.28.0, and later if VLLM_USE_V2_MODEL_RUNNER=0
is set; part `v2` for the V2 model runner. The builders of metadata of Mamba2, Bailing's linear attention and short
convolutions take what the runner counts. That of Gated DeltaNet does not in a step without any drafts: part `builder`.
Kimi K3 on NVIDIA has one of its own: part `kimi-k3`.

In a step with drafts, vLLM 0.18 with Mamba2, and all releases with Bailing's linear attention, take a prompt of at most
1 + k tokens for a decode. With the overlay this holds in steps with decodes without drafts, as in vLLM 0.32.
"""

from vpatch import Companion, File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared
from vpatch_overlays._shared import runner

prepare_inputs = runner.function("GPUModelRunner._prepare_inputs")
execute = runner.function("GPUModelRunner.execute_model")
build = File("vllm/v1/attention/backends/gdn_attn.py").function("GDNAttentionMetadataBuilder.build")
kimi_k3 = File("vllm/models/kimi_k3/nvidia/kda_metadata.py").function("KimiK3KDAMetadataBuilder.build")
states = File("vllm/v1/worker/gpu/model_states/mamba_hybrid.py")
prepare_attn = states.function("MambaHybridModelState.prepare_attn")
choice = File("vllm/v1/worker/gpu/model_states/__init__.py")
registry = File("vllm/model_executor/models/registry.py")
helper = Companion(f"{shared.COMPANIONS}.hybrid_zero_drafts")

HAS_DRAFTS = "len(scheduler_output.scheduled_spec_decode_tokens) > 0"
# The runner counts drafts right before this, if there are any.
marks = """
+mark_zero_drafts(self, num_scheduled_tokens, verifies=use_spec_decode)
 if self.lora_config:
     ...
"""
marks_v2 = """
+mark_zero_drafts_v2(self, input_batch, num_decode_draft_tokens_np)
 num_decode_draft_tokens_cpu = torch.from_numpy(num_decode_draft_tokens_np)
"""
# From 0.32 on, in both functions, and a row of one token is counted as one with 0 drafts.
ALWAYS = "use_spec_decode = self.speculative_config is not None"
marked_by_upstream = "num_decode_draft_tokens[(num_decode_draft_tokens < 0) & zero_draft_decode_mask] = 0"

MASKED = "num_decode_draft_tokens_cpu[spec_sequence_masks_cpu].sum().item() == 0"
NONE_YET = "num_decode_draft_tokens_cpu[num_decode_draft_tokens_cpu >= 0].sum().item() == 0"
# A step verifies drafts if it has such a row, of however many drafts.
NO_ROW = "not spec_sequence_masks_cpu.any()"
# Upstream's builders from 0.32 on; both end with this, that of Kimi K3 without the other branch.
BY_ROWS = """
if not self.use_spec_decode or num_decode_draft_tokens_cpu is None:
    ...
else:
    ...
    num_spec_decodes = spec_sequence_masks_cpu.sum().item()
    if num_spec_decodes == 0:
        ...
"""


def needed(use: Use) -> Need:
    """Return whether the use has draft tokens whose states a hybrid model keeps."""
    because = "a decode for which there are no drafts goes on from a state before accepted ones"
    return shared.not_speculating_hybrid(use) or Need(needed=True, because=because)


overlay = Overlay(
    summary="Speculative decoding on hybrid models: a decode without drafts goes on from the last accepted one.",
    symptoms=(
        "With n-gram or suffix decoding on a hybrid model (Qwen3-Next, Qwen3.5, Qwen3.6), answers drift, repeat or "
        "loop, without an error. Without speculation the same requests are answered well.",
    ),
    upstream=("vllm-project/vllm#56531",),
    needed=needed,
    releases={
        ">=0.18,<0.21": "pending: a decode without drafts goes on from before those that were accepted",
        ">=0.21,<0.32": "pending: the same, on both model runners",
        ">=0.32": "merged: a decode without drafts verifies none, from the accepted state (#56531)",
    },
    probes=(probe(shared.PROBES, "hybrid_zero_drafts"),),
    parts=(
        Part(
            "v1",
            merged=execute.contains(ALWAYS)
            & prepare_inputs.contains(ALWAYS)
            & prepare_inputs.contains(marked_by_upstream),
            shapes={
                "0.18": [
                    prepare_inputs.patch(marks),
                    execute.replace_expression(HAS_DRAFTS, f"{HAS_DRAFTS} or has_zero_drafts(self)"),
                    helper.import_into(runner, "has_zero_drafts", "mark_zero_drafts"),
                ]
            },
        ),
        Part(
            "builder",
            merged=build.contains(f"{BY_ROWS}    else:\n        ..."),
            shapes={
                "0.29": build.replace_expression(f"num_spec_decodes == 0 or {MASKED}", NO_ROW),
                "0.18": build.replace_expression(NONE_YET, "not (num_decode_draft_tokens_cpu >= 0).any()"),
            },
        ),
        Part(
            "kimi-k3",
            merged=kimi_k3.contains(BY_ROWS),
            absent=(~registry.lists("_MULTIMODAL_MODELS", "KimiK3*")).means("this vLLM has no Kimi K3"),
            shapes={"0.27": kimi_k3.replace_expression(MASKED, NO_ROW)},
        ),
        Part(
            "v2",
            merged=prepare_attn.contains("num_draft_tokens_per_req = np.zeros(input_batch.num_reqs, np.int32)")
            & prepare_attn.contains("np.where(is_decode, num_draft_tokens_per_req, -1)"),
            absent=(~choice.contains("MambaHybridModelState")).means(
                "the V2 model runner of this vLLM has no hybrid models"
            ),
            shapes={
                "0.21": Shape(
                    when=prepare_attn.contains("np.where(spec_decode_mask, ..., -1)"),
                    edits=[prepare_attn.patch(marks_v2), helper.import_into(states, "mark_zero_drafts_v2")],
                )
            },
        ),
    ),
)

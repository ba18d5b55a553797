"""Prompts of one token on hybrid models: a new one starts from nothing, not from the state of another request.

Layers such as Gated DeltaNet keep a state for each request, in a block that another request had before. What is in it
counts only for a request that goes on; a prompt starts from zeros. vLLM takes each row of one token for a decode,
which goes on. So the answer to a new prompt of a single token, such as the first token of a text alone, starts from
what the last owner of the block left there. There is no error. The answer is wrong, and depends on another request.

The same happens to the first chunk of a longer prompt, if `--max-num-batched-tokens` leaves just one token for it in a
step without drafts. The V2 model runner puts such a row before longer ones, where it is a decode; V1 mostly does not.

Part `state`: the builder of Gated DeltaNet's metadata counts rows from the first new prompt on as prefills, whose
kernels ask for each row whether it has a state. vLLM does so from 0.31 on. Where a step verifies drafts, all other rows
are prefills in every release.

Part `padding`: with MTP, vLLM 0.25 and later give placeholders for drafts to a request that arrives with one token to
compute, beside requests that decode, so that the step stays in the CUDA graph of decodes. This is meant for a prompt
that another server has computed. It also happens to a new prompt of one token, which then verifies these drafts from
the state of the block's last owner. With the overlay, hybrid models pad only requests that have a state.

A step with only rows of one token also replays the `FULL` CUDA graph of decodes, which asks for no state: on the V1
model runner in every release, on V2 up to 0.27. `hybrid-mtp-graphs` keeps new prompts out of it, and both overlays are
needed there. Alone, this one changes nothing in such steps.

Kimi K3 has builders of its own, which are left as they are.
"""

from vpatch import Companion, File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared
from vpatch_overlays._shared import runner

backend = File("vllm/v1/attention/backends/gdn_attn.py")
build = backend.function("GDNAttentionMetadataBuilder.build")
common = File("vllm/v1/attention/backend.py").class_("CommonAttentionMetadata")
build_attention = runner.function("GPUModelRunner._build_attention_metadata")
scheduler = File("vllm/v1/core/sched/scheduler.py")
schedule = scheduler.function("Scheduler.schedule")
helper = Companion(f"{shared.COMPANIONS}.hybrid_one_token")

from_nothing = """
 num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens = split_decodes_and_prefills(m, decode_threshold=1)
 ...
 non_spec_state_indices_tensor = block_table_tensor[:, 0]
+num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens = prefill_new_prompts(
+    self, m, non_spec_state_indices_tensor, (num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens)
+)
"""
# vLLM 0.18 does not tell the builders which rows are prompts; from 0.19 on it does, in the same way.
tells_prompts = """
 cm_base = CommonAttentionMetadata(...)
+cm_base.is_prefilling = (
+    self.input_batch.num_computed_tokens_cpu_tensor[:num_reqs_padded]
+    < torch.from_numpy(self.input_batch.num_prompt_tokens)[:num_reqs_padded]
+)
"""
knows_prompts = common.contains("is_prefilling: torch.Tensor | None = None")
# From 0.31 on, the builder counts first chunks as prefills.
counts_first_chunks = build.contains("split_decodes_and_prefills(m.replace(is_prefilling=no_prior_state), ...)")

# The scheduler pads a request that begins with one token. `num_computed_tokens` are those of its state.
pads = schedule.contains("pad_spec_decode = True")
gives_placeholders = schedule.contains("[-1] * self.num_spec_tokens")
only_with_state = schedule.replace_expression(
    "num_new_tokens == 1", "num_new_tokens == 1 and (num_computed_tokens > 0 or not self.has_mamba_layers)"
)


def needed(use: Use) -> Need:
    """Return whether the use has a hybrid model, whose layers may be Gated DeltaNet."""
    because = "a new prompt of one token starts from the state of another request"
    return shared.not_hybrid(use) or Need(needed=True, because=because)


overlay = Overlay(
    summary="Prompts of one token on hybrid models: a new one starts from nothing, not from another request's state.",
    symptoms=(
        "A prompt of a single token is answered with text that does not belong there, and differently each time, on a "
        "hybrid model (Qwen3-Next, Qwen3.5, Qwen3.6).",
        "The first requests after a start, such as warm-ups of one token, are answered well, and later ones are not.",
    ),
    upstream=("vllm-project/vllm#51565", "vllm-project/vllm#51562"),
    needed=needed,
    releases={
        ">=0.18,<0.25": "pending: a new prompt of one token is a decode",
        ">=0.25,<0.31": "pending: the same, and with drafts beside decodes it verifies some",
        ">=0.31": "pending: it is a prefill, but verifies drafts if it arrives beside decodes",
    },
    probes=(probe(shared.PROBES, "hybrid_one_token"),),
    parts=(
        Part(
            "state",
            upstream=("vllm-project/vllm#51565",),
            merged=counts_first_chunks,
            shapes={
                "0.19": Shape(
                    when=knows_prompts,
                    edits=[build.patch(from_nothing), helper.import_into(backend, "prefill_new_prompts")],
                ),
                "0.18": Shape(
                    when=~knows_prompts,
                    edits=[
                        build.patch(from_nothing),
                        build_attention.patch(tells_prompts),
                        helper.import_into(backend, "prefill_new_prompts"),
                    ],
                ),
            },
        ),
        Part(
            "padding",
            absent=(~pads & ~gives_placeholders).means("this vLLM pads no requests with drafts"),
            shapes={"0.25": Shape(when=pads, edits=only_with_state)},
        ),
    ),
)

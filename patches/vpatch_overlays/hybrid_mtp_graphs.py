"""CUDA graphs on hybrid models: a prompt as short as a decode is not computed by the graph of decodes.

With speculative decoding a decode brings 1 + k tokens for k drafts, without it one. vLLM takes each step in which every
request has that many tokens for a step of decodes, and replays its `FULL` CUDA graph, also for prompts, or last chunks
of prompts, of exactly that length. Layers with a state, such as Gated DeltaNet, refresh what the graph reads only in
steps without prompts. So the graph computes with the states of the step before, or of its capture: the prompt leaves
no state, and the whole answer is garbage, often "!!!!", with HTTP 200. Rows that verify drafts in the same step go
wrong as well.

A whole prompt of 1 + k tokens is rare. Last chunks of that length are not: without prefix caching, which is off by
default up to 0.25.1, each prompt has some last chunk, and a step that is full of decodes cuts others to that length.

The overlay lets the shape of a step count only if the layers take all of its rows for decodes. With speculation, such a
row verifies drafts. From 0.25 on vLLM gives drafts also to the last token of a prompt whose beginning comes from
another server; it stays in the graph. Without speculation, a row of one token must go on from a state. Steps with
prompts run as other mixed steps do, in `PIECEWISE` graphs. Dummy runs and captures are left as they are, and the ranks
of data parallelism agree as on any mixed step. Models without such layers do not change.

Part `v1` is for the V1 model runner, on which hybrid models run up to 0.28.0, and later if VLLM_USE_V2_MODEL_RUNNER=0
is set. Part `v2` is for the V2 model runner, which is right from 0.28.0 on.

The overlay `hybrid-one-token` needs this one: a new prompt of a single token is a decode by its length.
"""

from vpatch import Companion, File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared
from vpatch_overlays._shared import runner

execute = runner.function("GPUModelRunner.execute_model")
decide = runner.function("GPUModelRunner._determine_batch_execution_and_padding")
prepare_inputs = runner.function("GPUModelRunner._prepare_inputs")
v2_runner = File("vllm/v1/worker/gpu/model_runner.py")
helper = Companion(f"{shared.COMPANIONS}.hybrid_mtp_graphs")

FORCED = "force_uniform_decode=forced_uniform_decode(self, scheduler_output)"

# `force_uniform_decode` decides in place of the shape, for both graphs of a step of data parallelism.
forces = decide.contains("self._is_uniform_decode(..., force_uniform_decode=force_uniform_decode)")
# Only a step with drafts fills the buffer, in which -1 is a row that verifies none.
fills = prepare_inputs.contains("self.num_decode_draft_tokens.np[:num_reqs] = num_decode_draft_tokens")

only_without_prompts = """
 uniform_tok_count = get_uniform_token_count(num_reqs, num_toks, max_query_len)
+if not dummy_run and has_prompt(self, scheduler_output):
+    uniform_tok_count = None
"""
hybrids_on_v2 = (
    File("vllm/v1/worker/gpu/model_states/__init__.py")
    .function("init_model_state")
    .contains("return MambaHybridModelState(...)")
)
# From 0.28 on, the runner asks for requests with prompts as well.
DECODES = "get_uniform_decode_token_count(num_reqs, num_toks, max_query_len, {})"
asks = v2_runner.contains(DECODES.format("batch_state.has_prefill")) | v2_runner.contains(
    DECODES.format("decode_graph_eligible")
)


def needed(use: Use) -> Need:
    """Return whether the use has a hybrid model, whose layers keep states."""
    because = "a new prompt of one token is computed by the graph of decodes"
    if use.speculative_tokens:
        because = f"prompts and last chunks of {1 + use.speculative_tokens} tokens are computed by the graph of decodes"
    return shared.not_hybrid(use) or Need(needed=True, because=because)


overlay = Overlay(
    summary="CUDA graphs on hybrid models: a prompt as short as a decode is not computed by the graph of decodes.",
    symptoms=(
        "With MTP on a hybrid model (Qwen3.5, Qwen3.6), a whole answer is garbage, such as only exclamation "
        "marks (!!!!), with HTTP 200. With --enforce-eager the same request is answered well.",
        "A prompt of one token, or of one more than the draft tokens, is answered with garbage.",
    ),
    upstream=(
        "vllm-project/vllm#51865",
        "vllm-project/vllm#53059",
        "vllm-project/vllm#47123",
        "vllm-project/vllm#49918",
    ),
    needed=needed,
    releases={
        ">=0.18,<0.21": "pending: the V1 model runner looks at the lengths alone",
        ">=0.21,<0.28": "pending: both model runners look at the lengths alone",
        ">=0.28": "pending: the V1 model runner looks at the lengths alone; V2 is right",
    },
    probes=(probe(shared.PROBES, "hybrid_mtp_graphs"),),
    parts=(
        Part(
            "v1",
            shapes={
                "0.18": Shape(
                    when=forces & fills,
                    edits=[
                        execute.add_keyword("self._determine_batch_execution_and_padding(...)", FORCED),
                        helper.import_into(runner, "forced_uniform_decode"),
                    ],
                ),
            },
        ),
        Part(
            "v2",
            upstream=("vllm-project/vllm#51865",),
            merged=asks,
            absent=(~hybrids_on_v2).means("the V2 model runner of this vLLM has no hybrid models"),
            shapes={
                "0.21": Shape(
                    when=hybrids_on_v2,
                    edits=[
                        v2_runner.function("GPUModelRunner.execute_model").patch(only_without_prompts),
                        helper.import_into(v2_runner, "has_prompt"),
                    ],
                ),
            },
        ),
    ),
)

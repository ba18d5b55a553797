"""Speculative decoding on hybrid models: each request reads its own count of accepted tokens.

A hybrid model with draft tokens (MTP, EAGLE) keeps a state for each of them. The count of tokens that were accepted in
the last step selects the state to continue from. The V1 model runner copies these counts to the CPU in the row order of
that step. Then requests end, arrive and trade rows, and the counts move with the rows. With asynchronous scheduling,
the default, nothing orders the copy and the moves. From vLLM 0.19 on, the runner also maps each row back to the row of
the last step. This is wrong if the copy lands before or while the rows move, since the counts are then moved twice. If
it lands after, a new request reads a foreign count where no request of the last step goes on:

- With prefix caching (`mamba_cache_mode` "align"), 0.19 to 0.21 copy at once: counts are wrong whenever two rows are
  exchanged, without any race. From 0.22 on it is a race.
- Without prefix caching ("none"), 0.19 to 0.23 race, for requests that had no drafts in the last step. 0.24 and later
  do not read the counts on the CPU (vllm-project/vllm#45100).

A request then continues from the state of another token, without an error: its answer is wrong. With prefix caching the
wrong state enters the cache, and later requests continue from it.

The overlay waits for the copy before the runner prepares a step, and reads the counts row by row, as
vllm-project/vllm#53919 proposes. The runner waited for this copy already, a few hundred microseconds later. Both halves
are needed: with the wait of vllm-project/vllm#53613 alone, every copy lands early, and the wrong order becomes certain
for two or more requests. A community patch (noonghunna/club-3090#1061) does that; the overlay completes it, and leaves
its wait where it is. vLLM 0.18 is right: before rows move, it waits for the tokens of the last step, which are copied
after the counts.

The wait is the first statement of `synchronize_input_prep`, which every step enters before it changes anything. It
stands before the test of `prepare_inputs_event`: this is None without asynchronous scheduling, and with pipeline
parallelism nothing else orders the copy then.

Up to vLLM 0.25.1, a hybrid model with MTP and prefix caching needs both `hybrid-mtp-counts` and `hybrid-mtp-prefix`.

From vLLM 0.29 on, hybrid models use the V2 model runner, which keeps the counts on the GPU. There this overlay matters
only if vLLM falls back to the V1 runner: with VLLM_USE_V2_MODEL_RUNNER=0, or a feature that V2 lacks.

Not promised: an end of the illegal memory accesses that users report with MTP on hybrid models, for a foreign count is
a valid one. Nor the count of a request that is left out of a step and returns, as upstream sets it to 1: this happens
if max_num_batched_tokens is too small for all running requests, and with pipeline parallelism.
"""

from vpatch import File, Need, Overlay, Part, Shape, Unclear, Use, probe

from vpatch_overlays import _shared as shared
from vpatch_overlays._shared import runner

update_states = runner.function("GPUModelRunner._update_states")
after_execute = runner.function("GPUModelRunner._update_states_after_model_execute")
input_prep = runner.function("GPUModelRunner.synchronize_input_prep")
execute = runner.function("GPUModelRunner.execute_model")
prepare_inputs = runner.function("GPUModelRunner._prepare_inputs")
rows = File("vllm/v1/worker/gpu_input_batch.py")

WAIT = "self.num_accepted_tokens_event.synchronize()"
HAS_EVENT = "self.num_accepted_tokens_event is not None"
# Not `HAS_EVENT` alone: the wait of another patch has that condition, and would pass for a half of this overlay.
DRAFTS = f"self.speculative_config is not None and {HAS_EVENT}"
READS_ON_CPU = f"""{HAS_EVENT} and not (
    self.use_async_scheduling and self.cache_config.mamba_cache_mode != "align"
)"""
FIRST_MOVE = """
for request in reqs_to_add:
    self.input_batch.add_request(request)
    self.input_batch.update_req_spec_token_ids(request, scheduled_spec_tokens)
"""
PREPARED = "try:\n    yield\nfinally:\n    ..."
RECORD = "self.num_accepted_tokens_event.record()"
COUNTS = "self.num_accepted_tokens_cpu"

# The runner waits for the copy before it prepares a step, and then reads the counts as the rows have them. A dummy run
# enters here, too: an event that was never recorded, or long ago, does not wait. Upstream's own wait, right before the
# runner reads, may stay or be gone: it has nothing left to wait for.
row_by_row = """
@@ GPUModelRunner.synchronize_input_prep
+# This copy writes rows that the step moves.
+if $WAIT_IF:
+    self.num_accepted_tokens_event.synchronize()
 if self.prepare_inputs_event is None:
     yield
     return
@@ GPUModelRunner._prepare_inputs / if $READ_IF
-if self.use_async_scheduling and prev_req_id_to_index:
-    prev_idx = self.prev_positions.np[:num_reqs]
-    new_mask = prev_idx < 0
-    self.num_accepted_tokens.np[:num_reqs] = self.input_batch.num_accepted_tokens_cpu[np.where(new_mask, 0, prev_idx)]
-    self.num_accepted_tokens.np[:num_reqs][new_mask] = 1
-    self.input_batch.num_accepted_tokens_cpu[:num_reqs] = self.num_accepted_tokens.np[:num_reqs]
-else:
-    self.num_accepted_tokens.np[:num_reqs] = self.input_batch.num_accepted_tokens_cpu[:num_reqs]
+self.num_accepted_tokens.np[:num_reqs] = self.input_batch.num_accepted_tokens_cpu[:num_reqs]
"""

# `InputBatch` moves a request's count with its row, and sets it to 1 for a request that is added: in every release.
moves_counts = (
    rows.function("InputBatch.add_request").contains(f"{COUNTS}[req_index] = 1")
    & rows.function("InputBatch.condense").contains(f"{COUNTS}[empty_index] = {COUNTS}[last_req_index]")
    & rows.function("InputBatch.swap_states").contains(f"{COUNTS}[i1], {COUNTS}[i2] = ({COUNTS}[i2], {COUNTS}[i1])")
    & ~rows.function("InputBatch.remove_request").contains(COUNTS)
)
# The runner copies the counts into the rows of `InputBatch`, and then records the event. In mode "align" it does so
# from 0.22 on (`postprocess_mamba_align_gpu`); up to 0.21, the host writes the counts itself.
copies_into_rows = after_execute.contains(
    f"self.input_batch.num_accepted_tokens_cpu_tensor[:num_reqs].copy_(...)\n...\n{RECORD}"
) & (
    after_execute.contains(f"mamba_utils.postprocess_mamba_align_gpu(...)\n...\n{RECORD}")
    | after_execute.contains("self.input_batch.num_accepted_tokens_cpu[i] = num_tokens")
)
# The runner maps each row back to the row of the last step: from 0.19 on.
maps = prepare_inputs.contains("self.input_batch.num_accepted_tokens_cpu[np.where(...)]")
# The runner reads the counts row by row: in vllm-project/vllm#53919 always, in upstream's code if it does not map.
reads = prepare_inputs.contains(
    "self.num_accepted_tokens.np[:num_reqs] = self.input_batch.num_accepted_tokens_cpu[:num_reqs]"
)
# The runner waits for the copy before `_prepare_inputs`: in vllm-project/vllm#53613 and #53919, in no release. Beside
# the overlay's own wait this one changes nothing, wherever it stands.
waits = update_states.contains(WAIT) | input_prep.contains(WAIT) | execute.contains(WAIT)
# This wait, with or without a condition, stands before the first row moves: in vllm-project/vllm#53919, or where the
# overlay has it.
WAIT_IF_ANY = f"if ...:\n    ...\n    {WAIT}\n    ..."
waits_in_time = (
    update_states.contains(f"{WAIT}\n...\n{FIRST_MOVE}")
    | update_states.contains(f"{WAIT_IF_ANY}\n...\n{FIRST_MOVE}")
    | input_prep.contains(f"{WAIT}\n...\n{PREPARED}")
    | input_prep.contains(f"{WAIT_IF_ANY}\n...\n{PREPARED}")
)
# vLLM 0.18: these tokens are copied after the counts, on a stream that waits for them.
waits_for_tokens = update_states.contains(
    f"valid_sampled_token_count = self._get_valid_sampled_token_count()\n...\n{FIRST_MOVE}"
).means("this vLLM waits for the last step's tokens before rows move")

reads_alone = (reads & ~maps & ~waits).means(
    "the mapping to the rows of the last step is gone, without the wait: half of vllm-project/vllm#53919"
)
has_snapshot = runner.defines("GPUModelRunner._sync_num_accepted_tokens").means(
    "another fix, of vllm-project/vllm#51599, is there"
)
another_fix = reads_alone | has_snapshot
# The defect of 0.19 and later is there, and no other way to read: the overlay is not stacked on one.
unfixed = moves_counts & copies_into_rows & ~another_fix


def needed(use: Use) -> Need:
    """Return whether this use has draft tokens whose states a hybrid model keeps."""
    drafts = f"{use.speculative_tokens} draft token{'s' * (use.speculative_tokens > 1)}"
    because = f"the count of accepted tokens, of {drafts}, selects a hybrid model's state"
    return shared.not_speculating_hybrid(use) or Need(needed=True, because=because)


overlay = Overlay(
    summary="MTP on hybrid models: each request reads its own count of accepted tokens.",
    symptoms=(
        "With MTP or EAGLE on a hybrid model, such as Qwen3.5, answers are sometimes wrong, repetitive or garbled when "
        "several requests run at once, without an error.",
        "With prefix caching as well, a prompt that was answered well before is answered wrongly until a restart.",
    ),
    upstream=("vllm-project/vllm#53919", "vllm-project/vllm#51571"),
    needed=needed,
    releases={
        ">=0.18,<0.19": "not_applicable: the runner waits for the last step's tokens before rows move",
        ">=0.19,<0.24": "pending: the counts move with their rows, and are then mapped once more",
        ">=0.24,<0.29": "pending: the same, with prefix caching",
        ">=0.29": "pending: the same, on the V1 model runner only, as with VLLM_USE_V2_MODEL_RUNNER=0",
    },
    probes=(probe(shared.PROBES, "hybrid_mtp_counts"),),
    parts=(
        Part(
            "counts",
            merged=(waits_in_time & reads & ~maps & copies_into_rows & moves_counts) | Unclear(another_fix),
            absent=waits_for_tokens & ~maps,
            shapes={
                # vLLM 0.24 reads the counts on the CPU under this condition, and the wait is made under the same one.
                "0.24": Shape(
                    when=prepare_inputs.contains(f"needs_cpu_accepted_counts = {READS_ON_CPU}") & unfixed,
                    edits=runner.patch(row_by_row, WAIT_IF=READS_ON_CPU, READ_IF="needs_cpu_accepted_counts"),
                ),
                "0.19": Shape(when=unfixed, edits=runner.patch(row_by_row, WAIT_IF=DRAFTS, READ_IF=HAS_EVENT)),
            },
        ),
    ),
)

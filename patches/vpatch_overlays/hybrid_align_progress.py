"""Prefix caching on hybrid models: a long prompt goes on beside requests that decode.

With prefix caching (mode "align"), vLLM saves the state of a hybrid model where a chunk of a prompt ends. It therefore
ends each chunk at the end of a block, of some hundred to some thousand tokens. Requests that decode take their tokens
from the budget of a step (`--max-num-batched-tokens`) first. If less than a block is left, the chunk is cut to nothing:
the prompt gets no token, and neither do those that wait behind it, for as long as the others decode. With a budget of
one block, one decoding request is enough. From 0.27 on, vLLM lets a chunk end within a block, but only if the whole
budget is smaller than a block.

With the overlay, such a chunk ends within the block. The next one ends at the end of the block at the latest, so that
no other state than that of a block's end comes into the prefix cache. Where a step has room for a block, nothing
changes.

A chunk that ends within a block has at least two tokens more than a decoding request has drafts, and leaves as much of
the block: vLLM may take shorter ones for rows that decode (`hybrid-mtp-graphs` is on that). A prompt thus goes on in
each step that has 2 k + 3 tokens left for it, with k drafts. It takes more steps than with a larger budget. To spare
them, let the budget hold a block beside all decodes: `vpatch plan` names that number.
"""

from vpatch import Companion, File, Need, Overlay, Part, Use, probe

from vpatch_overlays import _shared as shared

scheduler = File("vllm/v1/core/sched/scheduler.py")
split = scheduler.function("Scheduler._mamba_block_aligned_split")
prefill = split.within("if num_computed_tokens < max(request.num_prompt_tokens, request.num_tokens - 1)")
helper = Companion(f"{shared.COMPANIONS}.hybrid_align_progress").import_into(scheduler, "end_within_block")

# The code behind this ends a chunk that begins within a block where the block ends.
unless_budget_is_less = """
 if $LATER:
     ...
     aligned_end = end // block_size * block_size
+    if aligned_end <= start and block_size <= max_prefill_tokens:
+        boundary = start // block_size * block_size + block_size
+        prompt_end = max(request.num_prompt_tokens, request.num_tokens - 1)
+        aligned_end = end_within_block(start, end, min(boundary, prompt_end), self.num_spec_tokens)
     if aligned_end > start or block_size <= max_prefill_tokens:
         end = aligned_end
"""
# So does the code behind this, up to `last_cache_position`.
to_last_position = """
 if end < last_cache_position:
-    end = end // block_size * block_size
+    boundary = start // block_size * block_size + block_size
+    if end < boundary:
+        end = end_within_block(start, end, boundary, self.num_spec_tokens)
+    else:
+        end = end // block_size * block_size
"""
# Up to 0.25 every chunk begins where a block does, and so the code has no such end.
from_boundaries = """
+boundary = num_computed_tokens // block_size * block_size + block_size
+if num_computed_tokens % block_size and boundary <= last_cache_position:
+    num_new_tokens = min(num_new_tokens, boundary - num_computed_tokens)
 num_computed_tokens_after_sched = num_computed_tokens + num_new_tokens
 if num_computed_tokens_after_sched < last_cache_position:
-    num_new_tokens = num_new_tokens // block_size * block_size
+    end = num_computed_tokens_after_sched // block_size * block_size
+    if num_computed_tokens_after_sched < boundary:
+        end = end_within_block(
+            num_computed_tokens, num_computed_tokens_after_sched, boundary, self.num_spec_tokens
+        )
+    num_new_tokens = end - num_computed_tokens
 elif num_computed_tokens < last_cache_position < num_computed_tokens_after_sched:
     ...
 else:
     ...
"""


def needed(use: Use) -> Need:
    """Return whether chunks of prompts end where blocks of a hybrid model do."""
    because = "a long prompt gets no tokens in a step that has no room for a block beside its decodes"
    return shared.not_caching_hybrid(use) or Need(needed=True, because=because)


overlay = Overlay(
    summary="Prefix caching on hybrid models: a long prompt goes on beside requests that decode.",
    symptoms=(
        "With prefix caching, a long prompt to a hybrid model (Qwen3.5, Qwen3.6) hangs for as long as other requests "
        "decode: no first token, no error, and more and more waiting requests in the log.",
        "A hybrid model with prefix caching hangs on long prompts with --long-prefill-token-threshold, up to 0.26.",
    ),
    upstream=("vllm-project/vllm#40709", "vllm-project/vllm#51603"),
    needed=needed,
    releases={">=0.18": "pending: a chunk that does not reach the end of its block is cut to nothing"},
    probes=(probe(shared.PROBES, "hybrid_align_progress"),),
    parts=(
        Part(
            "split",
            shapes={
                "0.27": [split.patch(unless_budget_is_less), helper],
                "0.26": [split.patch(to_last_position), helper],
                "0.18": [prefill.patch(from_boundaries), helper],
            },
        ),
    ),
)

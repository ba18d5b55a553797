"""Structured output with a reasoning parser and speculative decoding: the grammar holds once the reasoning has ended.

With `response_format`, or another kind of structured output, and a reasoning parser, vLLM leaves the reasoning free and
enforces the grammar behind its end, such as `</think>`. With speculative decoding a step brings several tokens. Up to
vLLM 0.26, the scheduler looks for the end in the last of them alone. If the end is another one, it is missed for good:
the grammar is never enforced, and the answer is prose. If it is found, the tokens of the step behind it do not advance
the grammar, so that the next one repeats them: `{{"name"`. Up to 0.24, the model may also write what it likes behind
the end within that step.

The overlay looks for the end in all tokens of the step, and advances the grammar by those behind it, as vLLM does from
0.27 on (vllm-project/vllm#44993). For 0.18 to 0.24 it also lets the grammar choose the tokens behind the end, as vLLM
does from 0.25 on (vllm-project/vllm#44297).

Without speculative decoding nothing changes: a step brings one token. A reasoning parser whose end is several tokens
may see it only at the end of a step; then the tokens behind it within this step do not count, as in vLLM 0.27.
"""

from vpatch import Companion, File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared

managing = File("vllm/v1/structured_output/__init__.py")
manager = managing.class_("StructuredOutputManager")
should_advance = managing.function("StructuredOutputManager.should_advance")
bitmask = managing.function("StructuredOutputManager.grammar_bitmask")
accept = managing.function("StructuredOutputManager.accept_tokens")
scheduling = File("vllm/v1/core/sched/scheduler.py")
update = scheduling.function("Scheduler.update_from_output")
helper = Companion(f"{shared.COMPANIONS}.structured_mtp")

ADVANCES = "self.structured_output_manager.should_advance(request)"
RECORDED = "structured_req.reasoning_end_token_index = {}"

# The end is looked for in all tokens of the step and recorded, and the tokens behind it advance the grammar at once.
in_step = """
@@ StructuredOutputManager
-def should_advance(self, request):
+def should_advance(self, request, new_token_ids=None):
     ...
@@ StructuredOutputManager.should_advance
+if new_token_ids:
+    start = len(all_token_ids) - len(new_token_ids)
 if $REASONER.is_reasoning_end_streaming(all_token_ids, itertools.islice(all_token_ids, start, None)):
     structured_req.reasoning_ended = True
{}"""
# Up to 0.24, vLLM does not know the index of the end.
in_all_tokens = in_step.format("""\
+    structured_req.reasoning_end_token_index = reasoning_end($REASONER, all_token_ids, start)
+    return True
     ...
""")
# In 0.25 and 0.26 it records the index for one kind of structured output alone.
for_every_kind = in_step.format("""\
-    if (
-        self.vllm_config.speculative_config is not None
-        and structured_req.structured_output_key[0] == StructuredOutputOptions.STRUCTURAL_TAG
-    ):
-        structured_req.reasoning_end_token_index = self._find_reasoning_end_index(reasoner, all_token_ids, start)
-        return True
+    structured_req.reasoning_end_token_index = self._find_reasoning_end_index(
+        reasoner=reasoner, all_token_ids=all_token_ids, start=start
+    )
+    return True
""")
# A draft may end the reasoning. The grammar then chooses the tokens behind it.
from_the_end_on = """
@@ StructuredOutputManager.grammar_bitmask
 req_tokens = scheduled_spec_decode_tokens.get(req_id, ())
+constrained_from = -1
+if not apply_bitmask:
+    reasoning_ends = drafted_end($REASONER, request, req_tokens)
+    req_tokens = without_refused(grammar, req_tokens, reasoning_ends)
+    constrained_from = cumulative_index + reasoning_ends + 1
@@ StructuredOutputManager.grammar_bitmask
 for token in $TOKENS:
     self._fill_bitmasks(((grammar, cumulative_index, apply_bitmask),))
     ...
     cumulative_index += 1
+    if cumulative_index == constrained_from:
+        apply_bitmask = True
"""
passes_the_tokens = update.replace_expression(ADVANCES, f"{ADVANCES[:-1]}, new_token_ids=new_token_ids)")
# Masks know an end within a step, and the scheduler leaves out the reasoning: vllm-project/vllm#44297, from 0.25 on.
knows_the_end = manager.contains("reasoner.is_reasoning_end_streaming(simulated, [token])") & update.contains(
    "self.structured_output_manager.trim_reasoning_for_advance(request, new_token_ids)"
)


def up_to_024(reasoner: str, asked: str) -> Shape:
    """Make the shape of a release whose masks know no end within a step.

    Its code has the parser as `reasoner` where it advances the grammar, and as `asked` where it fills masks.
    """
    return Shape(
        when=~knows_the_end,
        edits=[
            *managing.patch(in_all_tokens, REASONER=reasoner),
            *managing.patch(from_the_end_on, REASONER=asked),
            passes_the_tokens,
            update.replace_expression(
                "struct_output_request.grammar.accept_tokens(req_id, new_token_ids)",
                "accept_output(request, new_token_ids)",
            ),
            helper.import_into(managing, "drafted_end", "reasoning_end", "without_refused"),
            helper.import_into(scheduling, "accept_output"),
        ],
    )


def needed(use: Use) -> Need:
    """Return whether a step brings several tokens, one of which may end the reasoning."""
    because = "with a reasoning parser, a step of several tokens hides the end of the reasoning from structured output"
    return shared.not_speculating(use) or Need(needed=True, because=because)


overlay = Overlay(
    summary="Structured output with a reasoning parser and MTP: the grammar holds behind the reasoning.",
    symptoms=(
        "With MTP and a reasoning parser, response_format returns prose, or JSON that begins with its first tokens"
        ' twice, such as {{"name".',
        "With MTP, structured output and a reasoning parser, requests end early, and the log has: Failed to advance FSM"
        " for request.",
    ),
    errors=("Failed to advance FSM for request",),
    upstream=(
        *("vllm-project/vllm#44993", "vllm-project/vllm#44297", "vllm-project/vllm#43388", "vllm-project/vllm#34650"),
        "vllm-project/vllm#48228",
    ),
    needed=needed,
    releases={
        ">=0.18,<0.25": "pending: an end of the reasoning within a step is missed, and the grammar chooses no token "
        "behind it",
        ">=0.25,<0.27": "pending: an end of the reasoning within a step is missed",
        ">=0.27": "merged: the end is looked for in all tokens of a step",
    },
    probes=(probe(shared.PROBES, "structured_mtp"),),
    parts=(
        Part(
            "end",
            upstream=("vllm-project/vllm#44993",),
            # From 0.30 on, one method of the manager does it all.
            merged=(should_advance.takes("new_token_ids") & should_advance.contains(RECORDED.format("end_index")))
            | accept.contains("(...)(request, new_token_ids, spec_tokens_committed=True)"),
            shapes={
                "0.25": Shape(
                    when=knows_the_end,
                    edits=[*managing.patch(for_every_kind, REASONER="reasoner"), passes_the_tokens],
                ),
                "0.20": up_to_024("reasoner", "self._get_reasoner(request=request)"),
                "0.18": up_to_024("self.reasoner", "self.reasoner"),
            },
        ),
    ),
)

"""Speculative decoding with a small `max_num_batched_tokens`: no placeholder of a draft reaches the embedding.

With asynchronous scheduling, the default with MTP and EAGLE, the scheduler does not know a request's drafts yet, and
writes -1 for each. The V1 model runner replaces them by the drafts of the last step. A request that the last step left
out has none there: its placeholders stay, and are embedded as tokens. On a GPU the engine then dies of a device-side
assert. A compiled embedding of a text model may read another token instead, and with tensor parallelism zeros.

A step leaves a request out if the budget has no room for 1 + k tokens of each, or if its images have to wait.

The overlay embeds token 0 in place of a placeholder, as vLLM does from 0.25.0 on. The sampler refuses such a draft, and
the request goes on with the token before it. A step takes a few microseconds longer.

Not mended, in no release: a hybrid model also forgets how many of the drafts of a request were accepted when a step
leaves it out (see `hybrid-mtp-counts`). A budget of at least max_num_seqs x (1 + k) tokens avoids both.
"""

from vpatch import Need, Overlay, Part, Use, probe

from vpatch_overlays import _shared as shared
from vpatch_overlays._shared import runner

preprocess = runner.function("GPUModelRunner._preprocess")

no_placeholders = """
 is_encoder_decoder = self.model_config.is_encoder_decoder
+if self.speculative_config is not None:
+    self.input_ids.gpu[:num_input_tokens].clamp_(min=0)
"""


def needed(use: Use) -> Need:
    """Return whether there are drafts, for which the scheduler writes placeholders."""
    because = "a step that leaves a request out has no drafts for it, and embeds placeholders"
    return shared.not_speculating(use) or Need(needed=True, because=because)


overlay = Overlay(
    summary="MTP with a small token budget: a request that a step left out comes back without a crash.",
    symptoms=(
        "With MTP or EAGLE and many requests, or with images, the engine dies of a device-side assert in the embedding:"
        " vectorized gather kernel index out of bounds.",
    ),
    errors=("vectorized gather kernel index out of bounds", "num_output_placeholders"),
    upstream=("vllm-project/vllm#37159", "vllm-project/vllm#40768", "vllm-project/vllm#46899"),
    needed=needed,
    releases={
        ">=0.18,<0.25": "pending: placeholders for drafts reach the embedding",
        ">=0.25": "merged: placeholders are replaced",
    },
    probes=(probe(shared.PROBES, "mtp_token_budget"),),
    parts=(
        Part(
            "placeholders",
            upstream=("vllm-project/vllm#37159",),
            shapes={"0.18": preprocess.patch(no_placeholders)},
        ),
    ),
)

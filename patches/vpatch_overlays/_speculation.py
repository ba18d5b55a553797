"""The edits by which an overlay that lets TurboQuant start refuses what would start and be wrong.

Some overlays remove a crash that also stopped TurboQuant with speculative decoding, which computes wrong attention in
every release. Each of them adds these edits to the shapes that remove the crash. No release has two such shapes, so
that no two overlays add the same statement.
"""

from vpatch import All, EnsureImport, InsertAfter, Sets, companion

ATTENTION = "vllm/v1/attention/backends/turboquant_attn.py"
INIT = "TurboQuantMetadataBuilder.__init__"

# What the companions of several overlays read of a metadata builder; its base class sets it.
builder_base = Sets("vllm/v1/attention/backend.py", "AttentionMetadataBuilder", ("kv_cache_spec", "vllm_config"))

# For every shape with `refusal`: a configuration without this attribute would count as one without speculation.
knows_speculation = All((builder_base, Sets("vllm/config/vllm.py", "VllmConfig", ("speculative_config",))))

refusal = (
    EnsureImport(ATTENTION, "from vllm._vpatch.turboquant_speculation import refuse_wrong_attention"),
    InsertAfter(ATTENTION, INIT, anchor="super().__init__(...)", new="refuse_wrong_attention(self)"),
    companion("vpatch_overlays.companions", "turboquant_speculation"),
)

_REFUSED = "TurboQuant with speculative decoding: vLLM refuses to start where attention would be wrong"
NOTE = (
    f"{_REFUSED}: with CUDA graphs of whole decode steps, and with asynchronous scheduling. It starts with "
    "--enforce-eager --no-async-scheduling"
)
NOTE_ON_0_20 = f"{_REFUSED}: with CUDA graphs of whole decode steps. It starts with --enforce-eager"

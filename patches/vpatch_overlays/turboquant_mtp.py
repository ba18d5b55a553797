"""TurboQuant KV cache with speculative decoding: MTP, EAGLE, ngram and the like. One part matters without it, too.

TurboQuant has no kernel for a verification step, which brings a token and its drafts (1 + k tokens) for each request.
It treats them as a piece of a prompt, in a loop over requests that Python runs, and this goes wrong in several ways:

- `graphs`: vLLM captures verification steps as CUDA graphs of whole steps (`FULL`). A graph repeats the lengths that
  Python read during the capture, so that each token attends only to the tokens of its own step: repetitions and wrong
  tokens, or an illegal memory access. vLLM 0.20 dies during the capture instead. Now TurboQuant declares that with
  speculation it supports such graphs only for steps of one token, and vLLM captures its graphs between the attention
  layers (`PIECEWISE`). An explicit `FULL_DECODE_ONLY` is lowered as well. Hybrid models then need
  `mtp-capture-sizes`, also a default overlay.
- `lengths`: with asynchronous scheduling, the default with MTP and EAGLE, the lengths on the CPU count draft tokens
  that were rejected, so that tokens attend to stale slots. Now the lengths come from the device, without a
  synchronization. vLLM 0.20 reads them there.
- `fresh-prompts`, with and without speculation: TurboQuant attends to the tokens of the step alone if the longest piece
  of a prompt in it is as long as the longest context. Other requests in that step lose their KV cache: those that go on
  with a prompt, found the beginning of theirs in the prefix cache, or verify drafts. Now every request must be at the
  beginning of its prompt.
- `ultraquant-lengths`, `ultraquant-fresh-prompts`: from 0.32 on vLLM has another packed KV cache, UltraQuant, whose
  attention inherits from TurboQuant's, and which goes on with prompts in a copy of that code, with the same errors.

Attention of a verification step stays a loop over requests, outside of CUDA graphs, so that a step takes longer than
with an FP8 KV cache. With the overlay `turboquant-decode` it is a decode step, and in the graphs again. Layers of
linear attention leave the `FULL` graphs as well, because one mode holds for the whole model. Without speculation
nothing changes but the steps of `fresh-prompts`, and small pieces of a prompt compute their lengths on the device. A
step in which one prompt starts and another goes on takes longer than on stock, which leaves the KV cache out there.

`turboquant-hybrid`, `turboquant-workspace` and `turboquant-auto-dtype` by themselves refuse to start where attention
would be wrong. With this overlay they refuse nothing.
"""

from vpatch import Companion, File, Need, Overlay, Part, Shape, Use, probe

from vpatch_overlays import _shared as shared
from vpatch_overlays._shared import attention, build, builder, forward, metadata, prefill

common = File("vllm/v1/attention/backend.py").class_("CommonAttentionMetadata")
compilation = File("vllm/config/compilation.py")
resolve = compilation.function("CompilationConfig.resolve_cudagraph_mode_and_sizes")
helper = Companion(f"{shared.COMPANIONS}.turboquant_mtp")

GET_CUDAGRAPH_SUPPORT = '''
@classmethod
def get_cudagraph_support(cls, vllm_config, kv_cache_spec) -> AttentionCGSupport:
    """Return which CUDA graphs can hold attention: with draft tokens, only those of steps of one token a request."""
    if vllm_config.speculative_config and not verified_in_graphs(vllm_config):
        return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    return cls._cudagraph_support
'''
LOWERED = """
cudagraph_mode.decode_mode() == CUDAGraphMode.FULL
and uniform_decode_query_len > 1
and min_cg_support.value < AttentionCGSupport.UNIFORM_BATCH.value
"""
# vLLM lowers the mode of a model by what its backends support, as in every release with TurboQuant so far. Both model
# runners ask the builder for it.
lowers = resolve.contains(f"({LOWERED})")

exact_lengths = """
-synth_seq_lens = _arange_cache[cached_len + 1 : seq_len + 1]
+synth_seq_lens = _arange_cache[1 : q_len + 1] + (attn_metadata.seq_lens[i] - q_len)
"""
# The lengths that Python reads are those on the device: vLLM 0.20.
reads_the_device = prefill.contains("attn_metadata.seq_lens.tolist()") & ~prefill.contains("attn_metadata.seq_lens_cpu")

# vLLM asks for the longest request alone. A longer condition, as in vllm-project/vllm#46461, is not replaced.
LONGEST = "_HAS_FLASH_ATTN and attn_metadata.max_query_len == attn_metadata.max_seq_len"
only_if_fresh = """
-if $LONGEST:
+if $LONGEST and attn_metadata.fresh_prompts:
     return self._flash_attn_varlen(...)
"""

# UltraQuant's attention inherits from TurboQuant's, and has a copy of this function with the same errors.
ultraquant = File("vllm/v1/attention/backends/ultraquant_attn.py").function(
    "UltraQuantAttentionImpl._prefill_attention"
)
no_ultraquant = (~File("vllm/config/cache.py").lists("CacheDType", "ultraquant_*")).means(
    "this vLLM has no UltraQuant KV cache"
)


def asks_each_request(last: str) -> Shape:
    """Make the shape whose `forward` builds the metadata of a step's prompts by a call that ends with `last`."""
    return Shape(
        # What `only_fresh_prompts` reads: in every release with TurboQuant so far.
        when=common.contains("seq_lens_cpu_upper_bound: ... = None"),
        edits=[
            metadata.insert_after("num_decode_tokens: int = 0", "fresh_prompts: bool = False"),
            build.add_keyword("TurboQuantMetadata(...)", "fresh_prompts=only_fresh_prompts(cam, num_decodes)"),
            forward.add_keyword(f"TurboQuantMetadata(..., {last})", "fresh_prompts=attn_metadata.fresh_prompts"),
            prefill.patch(only_if_fresh, LONGEST=LONGEST),
            helper.import_into(attention, "only_fresh_prompts"),
        ],
    )


def needed(use: Use) -> Need:
    """Return whether attention of this use is wrong: always with TurboQuant, and in most steps with speculation."""
    because = "a new prompt makes other requests of its step lose their KV cache"
    if use.speculative_tokens:
        because = f"TurboQuant attends to wrong tokens when it verifies drafts, and {because}"
    return shared.not_turboquant(use) or Need(needed=True, because=because)


overlay = Overlay(
    summary="TurboQuant KV cache with speculative decoding, and with prompts that start while others go on.",
    symptoms=(
        "With speculative decoding and a TurboQuant KV cache, answers repeat themselves or have wrong words, although "
        "all metrics look healthy.",
        "With a TurboQuant KV cache, a request that found its beginning in the prefix cache answers as if it had not "
        "been there, now and then, and only beside other requests.",
        "On vLLM 0.20, an engine with TurboQuant and speculative decoding dies while it captures CUDA graphs, with "
        '"Cannot copy between CPU and CUDA tensors during CUDA graph capture".',
    ),
    beside=("SpeculativeConfig(method", "turboquant_attn.py"),
    upstream=(
        *("vllm-project/vllm#40807", "vllm-project/vllm#40880", "vllm-project/vllm#53180", "vllm-project/vllm#53406"),
        *("vllm-project/vllm#46460", "vllm-project/vllm#46461"),
    ),
    needed=needed,
    releases={
        ">=0.18,<0.20": "not_applicable: there is no TurboQuant KV cache yet",
        ">=0.20,<0.21": "pending: graphs of verification steps cannot be captured, and a new prompt makes other "
        "requests lose their KV cache, with and without speculation",
        ">=0.21": "pending: graphs of verification steps and lengths of rejected drafts give wrong tokens, and a new "
        "prompt makes other requests lose their KV cache, with and without speculation",
    },
    probes=(probe(shared.PROBES, "turboquant_mtp"),),
    parts=(
        Part(
            "graphs",
            upstream=("vllm-project/vllm#53406",),
            absent=shared.no_turboquant,
            shapes={
                "0.20": Shape(
                    when=lowers & shared.knows_speculation,
                    edits=[
                        builder.add_function(GET_CUDAGRAPH_SUPPORT),
                        # `_shared.refusal` asks for it. The parts stand together, since vpatch applies all or none.
                        builder.insert_after(
                            "_cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH",
                            "verifies_exactly: ClassVar[bool] = True",
                        ),
                        helper.import_into(attention, "verified_in_graphs"),
                    ],
                )
            },
        ),
        Part(
            "lengths",
            upstream=("vllm-project/vllm#53180",),
            absent=shared.no_turboquant | reads_the_device.means("this vLLM reads the lengths from the device"),
            shapes={"0.21": prefill.patch(exact_lengths)},
        ),
        Part(
            "fresh-prompts",
            upstream=("vllm-project/vllm#46461",),
            absent=shared.no_turboquant,
            shapes={
                "0.21": asks_each_request("is_prefill=True, query_start_loc_cpu=$STARTS, seq_lens_cpu=$LENGTHS"),
                "0.20": asks_each_request("is_prefill=True"),
            },
        ),
        Part(
            "ultraquant-lengths",
            upstream=("vllm-project/vllm#53180",),
            absent=no_ultraquant,
            shapes={"0.32": ultraquant.patch(exact_lengths)},
        ),
        # The part `fresh-prompts` sets what this one reads.
        Part(
            "ultraquant-fresh-prompts",
            upstream=("vllm-project/vllm#46461",),
            absent=no_ultraquant,
            shapes={"0.32": ultraquant.patch(only_if_fresh, LONGEST=f"{LONGEST} and D <= _CK_MAX_HEAD_DIM")},
        ),
    ),
)

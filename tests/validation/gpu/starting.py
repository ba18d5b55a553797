"""Scenarios of servers that default overlays keep alive: their answers are those of a server that needs no overlay."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.validation.gpu.engines import KEYED, PATCHED, STOCK, TQ, Probe
from tests.validation.gpu.probe import NEW_TOKENS, prompt, say

LOCKED, CHUNKED = "locked", "locked chunked"
EXPANDABLE, ORDINARY = "two expandable", "two"
LENGTHS = (6000, 7500)
"""Tokens of two prompts, of which the second begins with the first: it goes on by more than 128 tokens."""
WHOLE = {"max_model_len": 16384, "max_num_batched_tokens": 16384, "enable_prefix_caching": True}
TWO = {"tensor_parallel_size": 2}
ONLINE_FP8 = {"quantization": "fp8", "max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 30, "max_model_len": 4096}
# vLLM starts the ranks from a process of its own, as `vllm serve` does.
OWN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

STARTING: Mapping[str, list[Probe]] = {
    "locked": [
        # The same steps, for which stock reserves
        Probe(CHUNKED, "dense24", TQ, (("continued", LENGTHS),), {**WHOLE, "enable_chunked_prefill": True}, (STOCK,)),
        Probe(LOCKED, "dense24", TQ, (("continued", LENGTHS),), {**WHOLE, "enable_chunked_prefill": False},
              (STOCK, PATCHED)),
    ],
    "cache-key": [
        Probe("starts", "dense", steps=(("starts", ()),), engine=ONLINE_FP8, trees=(STOCK, KEYED), limit_s=400,
              releases=">=0.26"),
    ],
    "expandable": [
        Probe(ORDINARY, "dense", steps=(("continued", LENGTHS),), engine=TWO, trees=(STOCK,), environment=OWN_PROCESS,
              limit_s=300),
        Probe(EXPANDABLE, "dense", steps=(("continued", LENGTHS),), engine=TWO, trees=(STOCK, PATCHED),
              environment=OWN_PROCESS | SEGMENTS, limit_s=300),
    ],
}  # fmt: skip
"""By name, and by name only: one is about an opt-in overlay, and one needs two GPUs."""


def continued(llm: Any, lengths: Sequence[int], _: Mapping[str, Any]) -> None:
    """Answer prompts one by one, and print how many of their tokens were cached, and the answers."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True, detokenize=False)
    for length in lengths:
        (out,) = llm.generate([prompt(length)], params, use_tqdm=False)
        ids = list(out.outputs[0].token_ids)
        digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]
        say(continued=length, cached=out.num_cached_tokens, ids=len(ids), digest=digest)

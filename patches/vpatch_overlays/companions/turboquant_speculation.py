"""Refuse to start where TurboQuant with speculative decoding computes wrong attention; vllm-project/vllm#53180, #40807.

TurboQuant has no kernel for a verification step, which brings several tokens of each request. It treats them as a
piece of a prompt, and reads the length of each request in Python. This fails in two ways:

- A CUDA graph of a whole decode step (`FULL`) repeats the lengths that Python read during the capture: every token
  attends only to the tokens of its own step. vLLM 0.20 reads a device tensor there, so that the capture itself fails.
- With asynchronous scheduling, the lengths on the CPU count draft tokens that may have been rejected. Tokens then
  attend to stale slots. vLLM 0.20 reads the lengths from the device, which are correct.

The overlay `turboquant-mtp` corrects both, and sets `verifies_exactly = True` on `TurboQuantMetadataBuilder`. Nothing
is refused then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantMetadataBuilder


def refuse_wrong_attention(builder: TurboQuantMetadataBuilder) -> None:
    """Check the configuration of a metadata builder, which exists before the KV cache and before any CUDA graph.

    The V1 model runner has settled the CUDA graph mode by then. The V2 runner settles it later: there, a mode that asks
    for `FULL` graphs is refused even if another layer's backend would have lowered it.

    Raises:
        ValueError: verification steps would attend to the wrong tokens. The message names the settings that help.
    """
    config = builder.vllm_config
    # The overlay applies only if vLLM's configuration has the attribute, but stand-ins in upstream's tests lack it.
    speculation = getattr(config, "speculative_config", None)
    if speculation is None or getattr(builder, "verifies_exactly", False):
        return
    wrong = dict(_wrong(builder))
    if wrong:
        raise ValueError(
            f"TurboQuant KV cache ({config.cache_config.cache_dtype}) with speculative decoding "
            f"({speculation.method}) would compute wrong attention: {'; '.join(wrong.values())}. "
            "The vpatch overlay turboquant-mtp corrects this. Without it, start with "
            f"{' and '.join(wrong)}, with another --kv-cache-dtype, or without speculative decoding."
        )


def _wrong(builder: TurboQuantMetadataBuilder) -> Iterator[tuple[str, str]]:
    """Yield each error that would occur, after the option that avoids it."""
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantMetadata

    config = builder.vllm_config
    if config.compilation_config.cudagraph_mode.has_full_cudagraphs():
        yield "--enforce-eager", "CUDA graphs of whole decode steps cannot hold the verification of draft tokens"
    # Before 0.21 there are no lengths on the CPU.
    if config.scheduler_config.async_scheduling and "seq_lens_cpu" in TurboQuantMetadata.__annotations__:
        yield "--no-async-scheduling", "asynchronous scheduling counts draft tokens before they are accepted"

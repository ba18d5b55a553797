"""TurboQuant with draft tokens: CUDA graphs without attention, exact lengths, and no lost KV cache."""

from typing import Any

from vpatch_overlays.probes.bare import DENSE, expect, settle
from vpatch_overlays.probes.mtp_capture_sizes import graphs
from vpatch_overlays.probes.turboquant_layer import Layer


def main() -> None:
    """Run the model runner's and TurboQuant's own methods, with stand-ins for the kernels, on the CPU."""
    settle()
    layer = Layer(8192)
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend

    mode, _ = graphs(layer.config, "FULL_AND_PIECEWISE", TurboQuantAttentionBackend, layer.spec)
    expect("CUDA graphs of steps that verify drafts", expected_mode(layer), mode)
    # A request of 40 tokens, with 4 new ones. The CPU does not know yet that 2 earlier drafts were rejected.
    expect("contexts of the tokens that verify drafts", [37, 38, 39, 40], contexts(layer.impl, [4], [40], [42]))
    # Another one starts a prompt of 50 tokens in the same step.
    expect("contexts beside a new prompt", [37, 38, 39, 40], contexts(layer.impl, [4, 50], [40, 50], [40, 50]))
    expect("contexts of new prompts", None, contexts(layer.impl, [4, 50], [4, 50], [4, 50]))


def expected_mode(layer: Layer) -> str:
    """Return the CUDA graph mode to expect: with the overlay `turboquant-decode`, `FULL` graphs hold these steps."""
    try:
        from vllm._vpatch.turboquant_mtp import verified_in_graphs
    except ImportError:  # the overlay is not applied
        return "PIECEWISE"
    return "FULL_AND_PIECEWISE" if verified_in_graphs(layer.config) else "PIECEWISE"


def contexts(impl: Any, new: list[int], true: list[int], believed: list[int]) -> list[int] | None:
    """Let TurboQuant attend; return how many tokens those attend to that read the KV cache, None if none reads it.

    Args:
        impl: a layer's attention.
        new: tokens of each request in this step.
        true: tokens of each request with the new ones, as the device knows.
        believed: the same as the CPU knows.
    """
    import torch
    from vllm.v1.attention.backend import CommonAttentionMetadata
    from vllm.v1.attention.backends import turboquant_attn

    found: list[list[int]] = []

    def decode(query: Any, seq_lens: Any, **_: Any) -> Any:
        found.append(seq_lens.tolist())
        return query

    vars(turboquant_attn).update(_HAS_FLASH_ATTN=True, triton_turboquant_decode_attention=decode)
    heads, kv_heads, size = DENSE["num_attention_heads"], DENSE["num_key_value_heads"], DENSE["head_dim"]
    impl._flash_attn_varlen = lambda q, **_: q
    builder = object.__new__(turboquant_attn.TurboQuantMetadataBuilder)
    builder.reorder_batch_threshold = 1
    starts = torch.tensor([0, *new], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    batch = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(true, dtype=torch.int32),
        seq_lens_cpu_upper_bound=torch.tensor(believed, dtype=torch.int32),
        num_reqs=len(new),
        num_actual_tokens=sum(new),
        max_query_len=max(new),
        max_seq_len=max(believed),
        block_table_tensor=torch.zeros(len(new), 4, dtype=torch.int32),
        slot_mapping=torch.zeros(sum(new), dtype=torch.int64),
    )
    query, key, value = (torch.zeros(sum(new), n, size) for n in (heads, kv_heads, kv_heads))
    impl._prefill_attention(query, key, value, None, builder.build(0, batch), None, None)
    return [context for contexts in found for context in contexts] or None


if __name__ == "__main__":
    main()

"""TurboQuant's workspace after it is locked: the longest continuation of a prompt and a decode fit into it.

With chunked prefill a prompt goes on from its last chunk, without it from a cached prefix.
"""

from contextlib import suppress

from vpatch_overlays.probes.bare import DENSE, expect, settle
from vpatch_overlays.probes.turboquant_layer import Layer, check_refusal, workspace

LONGEST, CHUNK = 8192, 512


def main() -> None:
    """Check both ways to go on with a prompt, and then what is refused."""
    settle()
    for chunked in (True, False):
        layer = Layer(LONGEST, chunked=chunked)
        check_reserved(layer, "" if chunked else " without chunked prefill")
    check_refusal(layer)


def check_reserved(layer: Layer, how: str) -> None:
    """Make the metadata builder, then lock the workspace, take decode's part and continue a prompt.

    Raises:
        AssertionError: the workspace is too small, or the layer keeps buffers.
    """
    import torch
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend

    manager = workspace()
    builder = TurboQuantAttentionBackend.get_builder_cls()(layer.spec, ["layer"], layer.config, torch.device("meta"))
    manager.lock()
    limits = layer.config.scheduler_config
    splits = layer.config.attention_config.tq_max_kv_splits_for_cuda_graph
    with suppress(ModuleNotFoundError):  # unless an overlay has decode take less
        from vllm._vpatch.turboquant_decode_buffers import splits_to_reserve

        splits = splits_to_reserve(builder, splits)
    rows = (limits.max_num_seqs, DENSE["num_attention_heads"])
    held: list[str] = []
    try:
        manager.get_simultaneous(((*rows, splits, DENSE["head_dim"] + 1), torch.float32))
        _, held = layer.continue_prompt(LONGEST - CHUNK, CHUNK)
    except AssertionError as error:
        raise AssertionError(f"the workspace was to be large enough{how} when it is locked: {error}") from None
    expect("buffers that a layer keeps", [], held)


if __name__ == "__main__":
    main()

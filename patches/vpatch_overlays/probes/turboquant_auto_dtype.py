"""KV cache tensors of the V1 model runner: those of TurboQuant layers have TurboQuant's cache dtype."""

from types import SimpleNamespace

from vpatch_overlays.probes.bare import TURBOQUANT, expect, settle
from vpatch_overlays.probes.turboquant_layer import BLOCK, Layer, check_refusal

BLOCKS = 3


def main() -> None:
    """Shape a layer's tensor by the method of a runner with only the needed attributes."""
    settle()
    import torch
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner
    from vllm.v1.worker.utils import AttentionGroup

    layer = Layer(8192)
    if not hasattr(GPUModelRunner, "_reshape_kv_cache_tensors"):
        check_mode()
        return
    runner = object.__new__(GPUModelRunner)
    vars(runner).update(
        cache_config=layer.config.cache_config,
        kv_cache_config=SimpleNamespace(kv_cache_tensors=[], kv_cache_groups=["layer"]),
        attn_groups=[[AttentionGroup(TurboQuantAttentionBackend, ["layer"], layer.spec, 0)]],
        runner_only_attn_layers=set(),
    )
    raw = torch.empty(BLOCKS * layer.spec.page_size_bytes, dtype=torch.int8, device="meta")
    try:
        made = runner._reshape_kv_cache_tensors({"layer": raw}, [BLOCK])["layer"]
    except ValueError as error:
        raise AssertionError(f"the cache dtype {TURBOQUANT} was to be passed on: {error}") from None
    expect("bytes of the tensor", raw.nbytes, made.nbytes)
    check_refusal(layer)


def check_mode() -> None:
    """Check, from 0.30 on, that the spec's quantization mode is TurboQuant's own, since the spec shapes the tensor."""
    from vllm.v1.kv_cache_interface import get_kv_quant_mode

    expect("quantisation mode", TURBOQUANT.upper(), get_kv_quant_mode(TURBOQUANT).name)


if __name__ == "__main__":
    main()

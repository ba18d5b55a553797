"""One TurboQuant attention layer, made as vLLM makes it, and a continuation prefill of it that computes nothing."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from vpatch_overlays.probes.bare import DENSE, TURBOQUANT, engine_config

NAME = "model.layers.4.self_attn.attn"
BLOCK = 16


class Layer:
    """Layer 4 of a small model for prompts of up to `max_model_len` tokens: `config`, cache `spec` and `impl`."""

    def __init__(self, max_model_len: int, *, chunked: bool = True) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.layers.attention.attention import Attention
        from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend

        heads, size = DENSE["num_attention_heads"], DENSE["head_dim"]
        limits = {"max_model_len": max_model_len, "max_num_batched_tokens": 2048, "block_size": BLOCK}
        if not chunked:  # vLLM wants a batch to hold the longest prompt; decode of few requests takes less than that
            limits |= {"max_num_batched_tokens": max_model_len, "max_num_seqs": 16}
            limits |= {"enable_chunked_prefill": False, "enable_prefix_caching": True}
        self.config = engine_config(DENSE | {"max_position_embeddings": max_model_len}, **limits)
        self.config.cache_config.cache_dtype = TURBOQUANT
        with set_current_vllm_config(self.config):
            layer = Attention(
                heads,
                size,
                size**-0.5,
                num_kv_heads=DENSE["num_key_value_heads"],
                cache_config=self.config.cache_config,
                prefix=NAME,
                attn_backend=TurboQuantAttentionBackend,
            )
        self.impl = layer.impl
        spec = layer.get_kv_cache_spec(self.config)
        # From 0.28 on the model runner lets the backend choose the size of a slot.
        self.spec = getattr(TurboQuantAttentionBackend, "customize_spec", lambda spec: spec)(spec)

    def continue_prompt(self, cached: int, chunk: int) -> tuple[list[int], list[str]]:
        """Continue a prompt of `cached` tokens by `chunk` tokens, on the meta device.

        Returns:
            The number of keys in each call of attention, and the names of the tensors that the layer holds afterwards.
        """
        import torch
        from vllm.triton_utils import triton
        from vllm.v1.attention.backends import turboquant_attn
        from vllm.v1.attention.ops import merge_attn_states, triton_turboquant_decode

        given: list[int] = []

        def attend(**call: Any) -> Any:
            given.append(len(call["k"]))
            sums = torch.empty(*call["q"].shape[1::-1], device="meta")
            return (call["q"], sums) if call.get("return_softmax_lse") else call["q"]

        for module in (turboquant_attn, triton_turboquant_decode):
            vars(module).update(_tq_full_dequant_kv=_Kernel(), _use_fp8_e4b15=lambda device=0: 0)
        vars(turboquant_attn).update(_HAS_FLASH_ATTN=True, flash_attn_varlen_func=attend)
        vars(triton).setdefault("next_power_of_2", lambda number: 1 << (number - 1).bit_length())  # absent without GPU
        vars(merge_attn_states)["merge_attn_states"] = lambda *_, **__: None

        heads, kv_heads, size = DENSE["num_attention_heads"], DENSE["num_key_value_heads"], DENSE["head_dim"]
        blocks = -(-(cached + chunk) // BLOCK)
        half = {"dtype": torch.float16, "device": "meta"}
        layer = SimpleNamespace(_tq_Pi_half=torch.empty(size, size, **half))
        before = set(vars(layer))
        self.impl._continuation_prefill(
            layer,
            torch.empty(chunk, heads, size, **half),
            *torch.empty(2, chunk, kv_heads, size, **half),
            torch.empty(blocks, BLOCK, kv_heads, 128, dtype=torch.uint8, device="meta"),
            torch.empty(1, blocks, dtype=torch.int32, device="meta"),
            cached,
            cached + chunk,
            torch.empty(size, size, device="meta"),
            torch.empty(16, device="meta"),
        )
        return given, sorted(set(vars(layer)) - before)


def check_refusal(layer: Layer) -> None:
    """If an overlay added the refusal of speculative decoding, check that it refuses what would be wrong, only that.

    Raises:
        AssertionError: vLLM starts, and would capture CUDA graphs of steps that verify drafts; or it does not start,
            although another overlay keeps attention out of these graphs.
    """
    try:
        import vllm._vpatch.turboquant_speculation  # noqa: F401
    except ModuleNotFoundError:  # no overlay removed a crash from this release
        return
    import torch
    from vllm.config import CUDAGraphMode
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend

    layer.config.compilation_config.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    layer.config.speculative_config = SimpleNamespace(method="ngram")
    builder = TurboQuantAttentionBackend.get_builder_cls()
    supported = builder.get_cudagraph_support(layer.config, layer.spec)
    captured = supported.value >= AttentionCGSupport.UNIFORM_BATCH.value
    try:
        builder(layer.spec, ["layer"], layer.config, torch.device("meta"))
    except ValueError as error:
        if not captured:
            raise AssertionError(f"TurboQuant with speculative decoding was to start: {error}") from None
        return
    if captured:
        raise AssertionError("TurboQuant with speculative decoding and full CUDA graphs was to be refused: it starts")


class _Kernel:
    """A Triton kernel that does nothing."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *_, **__: None


def workspace() -> Any:
    """Install a new workspace in vLLM, on the meta device."""
    import torch
    from vllm.v1.worker import workspace

    torch.accelerator.empty_cache = lambda: None  # there may be no accelerator
    workspace.reset_workspace_manager()
    workspace.init_workspace_manager(torch.device("meta"), 1)
    return workspace.current_workspace_manager()

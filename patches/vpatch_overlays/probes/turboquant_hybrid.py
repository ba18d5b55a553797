"""A hybrid model with a TurboQuant KV cache: vLLM accepts it, and sizes its blocks by packed slots."""

from vpatch_overlays.probes.bare import TURBOQUANT, engine_config, expect, settle

LAYERS = 8
TEXT = {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": LAYERS,
    "layer_types": [*["linear_attention"] * 3, "full_attention"] * (LAYERS // 4),
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 24,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}
HYBRID = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": TEXT,
    "vision_config": {"model_type": "qwen3_5"},
}


def main() -> None:
    """Make the configuration, and align its blocks as vLLM does when it loads the model."""
    settle()
    from vllm.model_executor.layers.quantization.turboquant.config import TurboQuantConfig
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantAttentionBackend

    try:
        config = engine_config(HYBRID)
    except NotImplementedError as error:
        raise AssertionError(f"a hybrid model with {TURBOQUANT} was to be taken: {error}") from None
    cache = config.cache_config
    expect("layers to leave unquantised", [], cache.kv_cache_dtype_skip_layers)

    current_platform._align_hybrid_block_size(config, TurboQuantAttentionBackend)
    slot = TurboQuantConfig.from_cache_dtype(TURBOQUANT, TEXT["head_dim"]).slot_size_aligned
    wanted = cache.block_size * TEXT["num_key_value_heads"] * slot
    expect(f"bytes of a page of {cache.block_size} tokens", wanted, cache.mamba_page_size_padded)


if __name__ == "__main__":
    main()

"""Output heads (`lm_head`) in FP8 that compressed-tensors checkpoints hold: block, channel and tensor scales.

No release loads a head with block scales, not even 0.33; older ones miss more. A target `lm_head` is not found on
multimodal models, whose head is `language_model.lm_head`; Qwen3-Next never gives its head the quantisation config; and
a quantised head that the config ties to the input embeddings computes garbage instead of being refused. Heads that are
not quantised load as before. Quantised embeddings are not in this.
"""

from vpatch import (
    AddKeyword,
    All,
    AnyOf,
    Contains,
    EnsureImport,
    InsertAfter,
    InsertBefore,
    Need,
    Not,
    Overlay,
    Part,
    Shape,
    Use,
    companion,
    probe,
)

LAYERS = "vllm/model_executor/layers/"
VOCAB = f"{LAYERS}vocab_parallel_embedding.py"
CT = f"{LAYERS}quantization/compressed_tensors/compressed_tensors.py"
MODELS = "vllm/model_executor/models/"

GET_METHOD = "CompressedTensorsConfig.get_quant_method"
GET_SCHEME = "CompressedTensorsConfig.get_scheme_dict"
INIT = "VocabParallelEmbedding.__init__"
LOAD = "VocabParallelEmbedding.weight_loader"
TIE = "ParallelLMHead.tie_weights"

DISPATCHED = ("vllm-project/vllm#37291",)
QWEN3_5_PASSES = ("vllm-project/vllm#42124",)
KERNELS_READ = ("vllm-project/vllm#52543",)

QWEN3_5 = {
    f"{MODELS}qwen3_5.py": "Qwen3_5ForCausalLMBase.__init__",
    f"{MODELS}qwen3_5_mtp.py": "Qwen3_5MTP.__init__",
}
QWEN3_NEXT = {
    f"{MODELS}qwen3_next.py": "Qwen3NextForCausalLM.__init__",
    f"{MODELS}qwen3_next_mtp.py": "Qwen3NextMTP.__init__",
}

DISPATCH = """
if isinstance(layer, ParallelLMHead):
    return head_method(self, layer, prefix)
"""

IGNORED = """
if should_ignore_layer(layer_name, ignore=self.ignore, fused_mapping=self.packed_modules_mapping):
    return None
"""

LOAD_FP8 = """
if load_fp8_head(self, param, loaded_weight):
    return
"""

SCALAR = """
if loaded_weight.ndim == 0 and param.data.numel() == 1:
    loaded_weight = loaded_weight.reshape(param.data.shape)
"""

TIE_BEFORE_0_24 = """
if self.quant_config and self.quant_config.get_name() == "gguf":
    return embed_tokens
else:
    self.weight = embed_tokens.weight
    return self
"""

names = companion("vpatch_overlays.companions", "ct_fp8_lm_head")
weights = companion("vpatch_overlays.companions", "ct_fp8_lm_head_weights")


def ours(file: str, names: str, module: str = "ct_fp8_lm_head") -> EnsureImport:
    """Import from a companion."""
    return EnsureImport(file, f"from vllm._vpatch.{module} import {names}")


def quant_config_of(name: str, heads: dict[str, str], upstream: tuple[str, ...] = ()) -> Part:
    """Give the heads of a family of models the quantisation config."""
    call = 'ParallelLMHead(config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "lm_head"))'
    return Part(
        name=name,
        upstream=upstream,
        merged=All(
            tuple(Contains(f, s, "ParallelLMHead(..., quant_config=..., prefix=...)") for f, s in heads.items())
        ),
        shapes=(
            Shape(
                name="0.18",
                edits=tuple(AddKeyword(f, s, call, "quant_config=self.quant_config") for f, s in heads.items()),
            ),
        ),
    )


def refuse_tied(name: str, anchor: str) -> Shape:
    """Refuse a quantised head where `ParallelLMHead.tie_weights` has this form."""
    return Shape(
        name=name,
        edits=(
            ours(VOCAB, "refuse_tied_head"),
            InsertBefore(VOCAB, TIE, anchor=anchor, new="refuse_tied_head(self)"),
            names,
        ),
    )


def needed(use: Use) -> Need:
    """Say whether a use has a head that compressed-tensors holds in FP8."""
    if use.head is None:
        return Need(needed=False, because="the output head is not quantised")
    if use.quantization != "compressed-tensors" or not use.head.startswith("fp8-"):
        return Need(needed=False, because=f"the output head is {use.head}, of {use.quantization}")
    return Need(needed=True, because=f"the output head is {use.head} of compressed-tensors")


overlay = Overlay(
    summary="FP8 output heads (lm_head) of compressed-tensors checkpoints.",
    upstream=(*DISPATCHED, *QWEN3_5_PASSES, *KERNELS_READ),
    needed=needed,
    releases={
        ">=0.18,<0.20": "pending: no quantised head reaches compressed-tensors",
        ">=0.20,<0.23": "pending: heads are dispatched (#37291), but Qwen3.5 does not pass its config",
        ">=0.23,<0.31": "pending: Qwen3.5 passes its config and scalar scales load (#42124), but the rest is missing",
        ">=0.31": "pending: block scales, target names, Qwen3-Next and tied heads are missing",
    },
    probes=(probe("vpatch_overlays.probes", "ct_fp8_lm_head"),),
    parts=(
        Part(
            name="dispatch",
            upstream=DISPATCHED,
            merged=Contains(CT, GET_METHOD, "isinstance(layer, ParallelLMHead)"),
            shapes=(
                Shape(
                    name="0.18",
                    when=Not(
                        AnyOf(tuple(Contains(CT, GET_METHOD, n) for n in ("ParallelLMHead", "VocabParallelEmbedding")))
                    ),
                    edits=(
                        EnsureImport(
                            CT, "from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead"
                        ),
                        ours(CT, "head_method"),
                        InsertBefore(
                            CT,
                            GET_METHOD,
                            anchor="if isinstance(layer, Attention):\n    return CompressedTensorsKVCacheMethod(self)",
                            new=DISPATCH,
                        ),
                        names,
                    ),
                ),
            ),
        ),
        Part(
            name="target-names",
            shapes=(
                Shape(
                    name="0.18",
                    edits=(
                        ours(CT, "name_in_config"),
                        InsertBefore(
                            CT, GET_SCHEME, anchor=IGNORED, new="layer_name = name_in_config(layer, layer_name, self)"
                        ),
                        names,
                    ),
                ),
            ),
        ),
        quant_config_of("qwen3.5", QWEN3_5, QWEN3_5_PASSES),
        quant_config_of("qwen3-next", QWEN3_NEXT),
        Part(
            name="block-scales",
            merged=AnyOf(
                (Contains(VOCAB, LOAD, "BlockQuantScaleParameter"), Contains(VOCAB, LOAD, "self.weight_block_size"))
            ),
            shapes=(
                Shape(
                    name="0.18",
                    edits=(
                        ours(VOCAB, "load as load_fp8_head", "ct_fp8_lm_head_weights"),
                        ours(VOCAB, "refuse_cut_blocks", "ct_fp8_lm_head_weights"),
                        InsertAfter(
                            VOCAB,
                            INIT,
                            anchor="self.quant_method: QuantizeMethodBase = quant_method",
                            new="refuse_cut_blocks(self)",
                        ),
                        InsertAfter(
                            VOCAB, LOAD, anchor='packed_dim = getattr(param, "packed_dim", None)', new=LOAD_FP8
                        ),
                        names,
                        weights,
                    ),
                ),
            ),
        ),
        Part(
            name="scalar-scales",
            upstream=QWEN3_5_PASSES,
            merged=Contains(VOCAB, LOAD, "loaded_weight = loaded_weight.reshape(1)"),
            shapes=(
                Shape(
                    name="0.18",
                    when=Not(Contains(VOCAB, LOAD, "loaded_weight.ndim")),
                    edits=(
                        InsertBefore(
                            VOCAB,
                            LOAD,
                            anchor="assert param.data.shape == loaded_weight.shape",
                            new=SCALAR,
                            within=("if output_dim is None",),
                        ),
                    ),
                ),
            ),
        ),
        Part(
            name="geometry",
            upstream=KERNELS_READ,
            merged=All(
                (
                    Contains(VOCAB, INIT, "self.output_partition_sizes = ..."),
                    Contains(VOCAB, "ParallelLMHead.__init__", "self.has_bias = bias"),
                )
            ),
            shapes=(
                Shape(
                    name="0.18",
                    when=Not(Contains(VOCAB, INIT, "self.output_partition_sizes")),
                    edits=(
                        ours(VOCAB, "set_geometry", "ct_fp8_lm_head_weights"),
                        InsertAfter(
                            VOCAB,
                            INIT,
                            anchor="self.embedding_dim = embedding_dim",
                            new="set_geometry(self, prefix)",
                        ),
                        InsertBefore(
                            VOCAB,
                            "ParallelLMHead.__init__",
                            anchor="super().__init__(...)",
                            new="self.has_bias = bias",
                        ),
                        names,
                        weights,
                    ),
                ),
            ),
        ),
        Part(
            name="tied-heads",
            shapes=(
                refuse_tied("0.24", "return self.quant_method.tie_weights(self, embed_tokens)"),
                refuse_tied("0.18", TIE_BEFORE_0_24),
            ),
        ),
        Part(
            name="tied-qwen3.5",
            absent=All(
                tuple(
                    Contains(f, s, "self.lm_head = self.lm_head.tie_weights(self.model.embed_tokens)")
                    for f, s in QWEN3_5.items()
                )
            ),
            shapes=(
                Shape(
                    name="0.18",
                    edits=(
                        *(ours(file, "refuse_tied_target") for file in QWEN3_5),
                        *(
                            InsertBefore(
                                file,
                                scope,
                                anchor="self.lm_head = self.model.embed_tokens",
                                new='refuse_tied_target(self.quant_config, maybe_prefix(prefix, "lm_head"))',
                                within=("if get_pp_group().is_last_rank", "if config.tie_word_embeddings"),
                            )
                            for file, scope in QWEN3_5.items()
                        ),
                        names,
                    ),
                ),
            ),
        ),
    ),
)

"""Output heads (`lm_head`) in FP8 that compressed-tensors checkpoints hold: block, channel and tensor scales.

No release loads a head with block scales, not even 0.33. With tensor parallelism, this overlay pads the vocabulary so
that every rank has whole blocks. A target `lm_head` also means `language_model.lm_head`, the head of a multimodal
model. About 40 model classes build their head without the quantization config (GPT-OSS, Falcon-H1, Jamba, Qwen3-Next,
Step3, MTP modules); it then takes the config of the checkpoint that the model is loaded from, if a target there matches
the head by name.

A draft (EAGLE) from a checkpoint of its own gets the head of that checkpoint, even if its class passes the target's
config (MiniCPM, DeepSeek). An unquantized head of a draft no longer stops the start of an FP8 target.

A head that the config ties to the input embeddings is left unquantized, with a warning. Stock vLLM serves some of these
models rightly, and computes garbage from others. A tied checkpoint that has an FP8 head nevertheless is refused when it
is loaded. Heads that are not quantized load as before.

Not covered are quantized embeddings, and two kinds of models, for which `vpatch plan` says so. Some read the head's
weight past its quantization: Inkling, MuseSpark, DiffusionGemma. Others normalize the head while loading: Baichuan 2,
and BailingMoe and SarvamMoE with `norm_head`. The MTP module of Gemma4, also of the first kind, is not covered either.

Not with a model that vLLM itself serialized for `--load-format tensorizer`: it is built past this overlay's hook. A
head whose class passes no config then stays unquantized, and a draft's head follows the config that its class passes.
"""

from typing import TypeAlias

from vpatch import All, Block, Companion, Edits, File, Need, Overlay, Part, Predicate, Shape, Use, probe

from vpatch_overlays import _shared as shared

layers, models = "vllm/model_executor/layers", "vllm/model_executor/models"
vocab = File(f"{layers}/vocab_parallel_embedding.py")
init = vocab.function("VocabParallelEmbedding.__init__")
load = vocab.function("VocabParallelEmbedding.weight_loader")
head_init = vocab.function("ParallelLMHead.__init__")
tie_weights = vocab.function("ParallelLMHead.tie_weights")

compressed_tensors = File(f"{layers}/quantization/compressed_tensors/compressed_tensors.py")
get_method = compressed_tensors.function("CompressedTensorsConfig.get_quant_method")
get_scheme = compressed_tensors.function("CompressedTensorsConfig.get_scheme_dict")

loader = File("vllm/model_executor/model_loader/utils.py")
v2_drafts = File("vllm/v1/worker/gpu/spec_decode/eagle/utils.py")

QWEN3_5 = (
    File(f"{models}/qwen3_5.py").function("Qwen3_5ForCausalLMBase.__init__"),
    File(f"{models}/qwen3_5_mtp.py").function("Qwen3_5MTP.__init__"),
)
QWEN3_NEXT = (
    File(f"{models}/qwen3_next.py").function("Qwen3NextForCausalLM.__init__"),
    File(f"{models}/qwen3_next_mtp.py").function("Qwen3NextMTP.__init__"),
)

NAMES = ("ct_fp8_lm_head", "ct_fp8_lm_head_weights", "ct_fp8_lm_head_models")
dispatching, weights, building = (Companion(f"{shared.COMPANIONS}.{name}", along=NAMES) for name in NAMES)

Links: TypeAlias = tuple[str, ...]

DISPATCHED = ("vllm-project/vllm#37291",)
QWEN3_5_PASSES = ("vllm-project/vllm#42124",)
KERNELS_READ = ("vllm-project/vllm#52543",)

asks_for_heads = """
 ^
 if isinstance(layer, LinearBase):
     ...
+if isinstance(layer, ParallelLMHead):
+    return head_method(self, layer, prefix)
 if isinstance(layer, Attention):
     return CompressedTensorsKVCacheMethod(self)
"""
names_as_in_config = """
+layer_name = name_in_config(layer, layer_name, self)
 if should_ignore_layer(layer_name, ignore=self.ignore, fused_mapping=self.packed_modules_mapping):
     return None
"""
loads_fp8 = """
 packed_dim = getattr(param, "packed_dim", None)
+if load_fp8_head(self, param, loaded_weight):
+    return
"""
reshapes_scalars = """
 if output_dim is None:
+    if loaded_weight.ndim == 0 and param.data.numel() == 1:
+        loaded_weight = loaded_weight.reshape(param.data.shape)
     assert param.data.shape == loaded_weight.shape
     ...
"""
shares_only_equal_types = """
 w = draft.weight
+if w.dtype != target.weight.dtype:
+    return False
"""
SHARED = "torch.equal(target_language_model.lm_head.weight.cpu(), self.model.lm_head.weight.cpu())"

TIE_BEFORE_0_24 = """
if self.quant_config and self.quant_config.get_name() == "gguf":
    return embed_tokens
else:
    self.weight = embed_tokens.weight
    return self
"""

READS_WEIGHT = "its logits are computed from the weight of the head without its scales"
NORMALIZES = "it normalizes the head while loading, which PyTorch cannot do in FP8"
IF_NORM_HEAD = f"where its config sets norm_head, {NORMALIZES}"
UNCOVERED = {
    "InklingForCausalLM": READS_WEIGHT,
    "InklingForConditionalGeneration": READS_WEIGHT,
    "MuseSparkForConditionalGeneration": READS_WEIGHT,
    "DiffusionGemmaForBlockDiffusion": f"its head has no name, or (from vLLM 0.31 on) {READS_WEIGHT}",
    "BailingMoeForCausalLM": IF_NORM_HEAD,
    "BailingMoeV2ForCausalLM": IF_NORM_HEAD,
    "SarvamMoEForCausalLM": IF_NORM_HEAD,
    "BaichuanForCausalLM": f"as Baichuan 2, {NORMALIZES}",
}
"""Architectures whose FP8 head no release can serve, even with this overlay, with the reason. Some are conditional."""


def part(
    name: str, *edits: Edits, when: Predicate | None = None, merged: Predicate | None = None, upstream: Links = ()
) -> Part:
    """Make a part with one shape."""
    return Part(name, {"0.18": Shape(when=when, edits=edits)}, merged, upstream=upstream)


def passes_config(name: str, models: tuple[Block, ...], upstream: Links = ()) -> Part:
    """Make a part that passes the quantization config to the heads of a family of models."""
    call = 'ParallelLMHead(config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "lm_head"))'
    # Each of the models does so: Qwen3.5 from 0.23 on (vllm-project/vllm#42124), Qwen3-Next in no release.
    passed = All(tuple(model.contains("ParallelLMHead(..., quant_config=..., prefix=...)") for model in models))
    add = [model.add_keyword(call, "quant_config=self.quant_config") for model in models]
    return part(name, add, merged=passed, upstream=upstream)


def leaves_tied_head(anchor: str) -> Edits:
    """Leave a tied head unquantized, before the statement `anchor` of `ParallelLMHead.tie_weights`."""
    leave = tie_weights.insert_before(anchor, "leave_tied(self, embed_tokens)")
    return leave, building.import_into(vocab, "leave_tied")


def leaves_tied_targets(models: tuple[Block, ...]) -> Edits:
    """Record that the embeddings of a tied model serve as its head, if the model builds no head."""
    target = (
        'leave_tied_target(self.quant_config, maybe_prefix(prefix=prefix, name="lm_head"), self.model.embed_tokens)'
    )
    tied = [model.within("if get_pp_group().is_last_rank", "if config.tie_word_embeddings") for model in models]
    return (
        [block.insert_before("self.lm_head = self.model.embed_tokens", target) for block in tied],
        [building.import_into(File(model.path), "leave_tied_target") for model in models],
    )


def compares_types(path: str) -> Edits:
    """Compare the heads of target and draft only if their weights have one dtype."""
    types = "target_language_model.lm_head.weight.dtype == self.model.lm_head.weight.dtype"
    share = File(path).function("SpecDecodeBaseProposer._maybe_share_lm_head")
    return share.replace_expression(SHARED, f"({types} and {SHARED})")


def needed(use: Use) -> Need:
    """Return whether the model has a head that compressed-tensors stores in FP8."""
    if use.head is None:
        return Need(needed=False, because="the output head is not quantized")
    if use.quantization != "compressed-tensors" or not use.head.startswith("fp8-"):
        return Need(needed=False, because=f"the output head is {use.head}, of {use.quantization}")
    uncovered = UNCOVERED.get(use.architecture or "", "")
    return Need(needed=True, because=f"the output head is {use.head} of compressed-tensors", uncovered=uncovered)


overlay = Overlay(
    summary="FP8 output heads (lm_head) of compressed-tensors checkpoints.",
    symptoms=(
        "ValueError: There is no module or parameter named 'lm_head.weight_scale' in ...",
        "vLLM stops with AssertionError in weight_loader (vocab_parallel_embedding.py) while it loads block scales.",
        "Beside an FP8 head, the plain head of a draft model fails: 'Promotion for Float8 Types is not supported'.",
        "A model that ties its head to its embeddings starts, and its answers are garbage.",
    ),
    errors=("ValueError: There is no module or parameter named 'lm_head.input_scale' in ...",),
    upstream=(*DISPATCHED, *QWEN3_5_PASSES, *KERNELS_READ),
    needed=needed,
    releases={
        ">=0.18,<0.20": "pending: no quantized head reaches compressed-tensors",
        ">=0.20,<0.23": "pending: heads are dispatched (#37291), but Qwen3.5 does not pass its config",
        ">=0.23,<0.31": "pending: Qwen3.5 passes its config and scalar scales load (#42124), but the rest is missing",
        ">=0.31": "pending: block scales, target names, tied heads and heads that get no config are missing",
    },
    probes=(probe(shared.PROBES, "ct_fp8_lm_head"),),
    parts=(
        part(
            "dispatch",
            compressed_tensors.ensure_import(
                "from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead"
            ),
            get_method.patch(asks_for_heads),
            dispatching.import_into(compressed_tensors, "head_method"),
            # Heads are dispatched: vllm-project/vllm#37291, from 0.20 on.
            merged=get_method.contains("isinstance(layer, ParallelLMHead)"),
            upstream=DISPATCHED,
        ),
        part(
            "target-names",
            get_scheme.patch(names_as_in_config),
            dispatching.import_into(compressed_tensors, "name_in_config"),
        ),
        part(
            "config-of-head",
            loader.function("initialize_model").replace_expression(
                "model_class(vllm_config=vllm_config, prefix=prefix)",
                "build_with_heads(model_class, vllm_config, prefix, model_config)",
            ),
            init.insert_before(
                "self.embedding_dim = embedding_dim", "quant_config = config_of_head(self, prefix, quant_config)"
            ),
            building.import_into(loader, "build as build_with_heads"),
            building.import_into(vocab, "config_of_head"),
        ),
        passes_config("qwen3.5", QWEN3_5, QWEN3_5_PASSES),
        passes_config("qwen3-next", QWEN3_NEXT),
        part(
            "block-scales",
            init.insert_after("self.quant_method: QuantizeMethodBase = quant_method", "pad_to_blocks(self)"),
            load.patch(loads_fp8),
            weights.import_into(vocab, "load as load_fp8_head", "pad_to_blocks"),
            # The loader knows block scales, by their parameter or by the block size; in no release.
            merged=load.contains("BlockQuantScaleParameter") | load.contains("self.weight_block_size"),
        ),
        part(
            "scalar-scales",
            load.patch(reshapes_scalars),
            # The loader reshapes scalar scales: vllm-project/vllm#42124, from 0.23 on.
            merged=load.contains("loaded_weight = loaded_weight.reshape(1)"),
            upstream=QWEN3_5_PASSES,
        ),
        part(
            "geometry",
            init.insert_after("self.embedding_dim = embedding_dim", "set_geometry(self, prefix)"),
            head_init.insert_before("super().__init__(...)", "self.has_bias = bias"),
            weights.import_into(vocab, "set_geometry"),
            # The embedding has no geometry of upstream's: the overlay would set another one over it.
            when=~init.contains("self.output_partition_sizes"),
            # It has all that the kernels read, as vllm-project/vllm#52543 proposes: from 0.31 on.
            merged=init.contains("self.output_partition_sizes = ...") & head_init.contains("self.has_bias = bias"),
            upstream=KERNELS_READ,
        ),
        Part(
            "tied-heads",
            {
                "0.24": leaves_tied_head("return self.quant_method.tie_weights(self, embed_tokens)"),
                "0.18": leaves_tied_head(TIE_BEFORE_0_24),
            },
        ),
        Part(
            "tied-qwen3.5",
            {"0.18": leaves_tied_targets(QWEN3_5)},
            absent=All(
                tuple(
                    model.contains("self.lm_head = self.lm_head.tie_weights(self.model.embed_tokens)")
                    for model in QWEN3_5
                )
            ).means("this vLLM ties these heads by their weights"),
        ),
        Part(
            "draft-heads",
            {
                "0.20": compares_types("vllm/v1/spec_decode/llm_base_proposer.py"),
                "0.18": compares_types("vllm/v1/spec_decode/eagle.py"),
            },
        ),
        Part(
            "draft-heads-v2",
            {"0.22": v2_drafts.function("_should_share").patch(shares_only_equal_types)},
            absent=v2_drafts.function("load_eagle_model")
            .contains("share_lm_head = not eagle_model.has_own_lm_head")
            .means("this vLLM never replaces the head of a draft that has its own"),
        ),
    ),
)

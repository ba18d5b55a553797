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
    ReplaceExpr,
    Shape,
    Use,
    companion,
    probe,
)

LAYERS = "vllm/model_executor/layers/"
VOCAB = f"{LAYERS}vocab_parallel_embedding.py"
CT = f"{LAYERS}quantization/compressed_tensors/compressed_tensors.py"
MODELS = "vllm/model_executor/models/"
BUILD = "vllm/model_executor/model_loader/utils.py"
PROPOSER, EAGLE = "vllm/v1/spec_decode/llm_base_proposer.py", "vllm/v1/spec_decode/eagle.py"
V2_DRAFTS = "vllm/v1/worker/gpu/spec_decode/eagle/utils.py"

GET_METHOD = "CompressedTensorsConfig.get_quant_method"
GET_SCHEME = "CompressedTensorsConfig.get_scheme_dict"
INIT = "VocabParallelEmbedding.__init__"
LOAD = "VocabParallelEmbedding.weight_loader"
TIE = "ParallelLMHead.tie_weights"

Links: TypeAlias = tuple[str, ...]
Edit: TypeAlias = EnsureImport | InsertAfter | InsertBefore | ReplaceExpr

# What tells how a vocabulary is shared among ranks.
SHARD = ("self._get_indices", "self.embedding_dim", "self.num_embeddings", "self.org_vocab_size", "self.tp_size")

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

SHARE = "SpecDecodeBaseProposer._maybe_share_lm_head"
SHARED = "torch.equal(target_language_model.lm_head.weight.cpu(), self.model.lm_head.weight.cpu())"

OTHER_TYPE = """
if w.dtype != target.weight.dtype:
    return False
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

TIED_TARGET = 'leave_tied_target(self.quant_config, maybe_prefix(prefix, "lm_head"), self.model.embed_tokens)'

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
"""Architectures whose FP8 head no release serves, not even with this overlay, and why. Some reasons are conditional."""

OURS = tuple(companion("vpatch_overlays.companions", f"ct_fp8_lm_head{name}") for name in ("", "_weights", "_models"))


def ours(file: str, names: str, module: str = "") -> EnsureImport:
    """Import from a companion."""
    return EnsureImport(file, f"from vllm._vpatch.ct_fp8_lm_head{module} import {names}")


def edited(
    name: str, *edits: Edit, when: Not | None = None, merged: All | AnyOf | Contains | None = None, upstream: Links = ()
) -> Part:
    """A part of one shape, whose edits call the companions."""
    return Part(name, (Shape("0.18", (*edits, *OURS), when),), merged, upstream=upstream)


def quant_config_of(name: str, heads: dict[str, str], upstream: Links = ()) -> Part:
    """Pass the quantization config to the heads of a family of models."""
    call = 'ParallelLMHead(config.vocab_size, config.hidden_size, prefix=maybe_prefix(prefix, "lm_head"))'
    passed = "ParallelLMHead(..., quant_config=..., prefix=...)"
    edits = tuple(
        AddKeyword(file, scope, call, "quant_config=self.quant_config", uses=("self.quant_config",))
        for file, scope in heads.items()
    )
    merged = All(tuple(Contains(file, scope, passed) for file, scope in heads.items()))
    return Part(name, (Shape("0.18", edits),), merged, upstream=upstream)


def tied_heads(name: str, anchor: str) -> Shape:
    """Leave a tied head unquantized where `ParallelLMHead.tie_weights` has this form."""
    leave = InsertBefore(VOCAB, TIE, anchor=anchor, new="leave_tied(self, embed_tokens)", uses=SHARD)
    return Shape(name, (ours(VOCAB, "leave_tied", "_models"), leave, *OURS))


def left_tied(file: str, scope: str) -> tuple[Edit, ...]:
    """Note that a tied model uses its embeddings, where it builds no head at all."""
    within = ("if get_pp_group().is_last_rank", "if config.tie_word_embeddings")
    anchor = "self.lm_head = self.model.embed_tokens"
    return (
        ours(file, "leave_tied_target", "_models"),
        InsertBefore(
            file, scope, anchor=anchor, new=TIED_TARGET, within=within, uses=("self.model", "self.quant_config")
        ),
    )


def compares_types(name: str, file: str) -> Shape:
    """Compare the heads of target and draft only if they are of one type."""
    types = "target_language_model.lm_head.weight.dtype == self.model.lm_head.weight.dtype"
    return Shape(name, (ReplaceExpr(file, SHARE, old=SHARED, new=f"({types} and {SHARED})", uses=("self.model",)),))


def needed(use: Use) -> Need:
    """Decide whether a use has a head that compressed-tensors holds in FP8."""
    if use.head is None:
        return Need(needed=False, because="the output head is not quantized")
    if use.quantization != "compressed-tensors" or not use.head.startswith("fp8-"):
        return Need(needed=False, because=f"the output head is {use.head}, of {use.quantization}")
    uncovered = UNCOVERED.get(use.architecture or "", "")
    return Need(needed=True, because=f"the output head is {use.head} of compressed-tensors", uncovered=uncovered)


overlay = Overlay(
    summary="FP8 output heads (lm_head) of compressed-tensors checkpoints.",
    upstream=(*DISPATCHED, *QWEN3_5_PASSES, *KERNELS_READ),
    needed=needed,
    releases={
        ">=0.18,<0.20": "pending: no quantized head reaches compressed-tensors",
        ">=0.20,<0.23": "pending: heads are dispatched (#37291), but Qwen3.5 does not pass its config",
        ">=0.23,<0.31": "pending: Qwen3.5 passes its config and scalar scales load (#42124), but the rest is missing",
        ">=0.31": "pending: block scales, target names, tied heads and heads that get no config are missing",
    },
    probes=(probe("vpatch_overlays.probes", "ct_fp8_lm_head"),),
    parts=(
        edited(
            "dispatch",
            EnsureImport(CT, "from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead"),
            ours(CT, "head_method"),
            InsertBefore(
                CT,
                GET_METHOD,
                anchor="if isinstance(layer, Attention):\n    return CompressedTensorsKVCacheMethod(self)",
                new=DISPATCH,
                uses=("self.get_scheme", "self.get_scheme_dict"),
            ),
            when=Not(AnyOf(tuple(Contains(CT, GET_METHOD, n) for n in ("ParallelLMHead", "VocabParallelEmbedding")))),
            merged=Contains(CT, GET_METHOD, "isinstance(layer, ParallelLMHead)"),
            upstream=DISPATCHED,
        ),
        edited(
            "target-names",
            ours(CT, "name_in_config"),
            InsertBefore(
                CT,
                GET_SCHEME,
                anchor=IGNORED,
                new="layer_name = name_in_config(layer, layer_name, self)",
                uses=("self.ignore", "self.target_scheme_map"),
            ),
        ),
        edited(
            "config-of-head",
            ours(BUILD, "build as build_with_heads", "_models"),
            ReplaceExpr(
                BUILD,
                "initialize_model",
                old="model_class(vllm_config=vllm_config, prefix=prefix)",
                new="build_with_heads(model_class, vllm_config, prefix, model_config)",
            ),
            ours(VOCAB, "config_of_head", "_models"),
            InsertBefore(
                VOCAB,
                INIT,
                anchor="self.embedding_dim = embedding_dim",
                new="quant_config = config_of_head(self, prefix, quant_config)",
            ),
        ),
        quant_config_of("qwen3.5", QWEN3_5, QWEN3_5_PASSES),
        quant_config_of("qwen3-next", QWEN3_NEXT),
        edited(
            "block-scales",
            ours(VOCAB, "load as load_fp8_head", "_weights"),
            ours(VOCAB, "pad_to_blocks", "_weights"),
            InsertAfter(
                VOCAB,
                INIT,
                anchor="self.quant_method: QuantizeMethodBase = quant_method",
                new="pad_to_blocks(self)",
                uses=SHARD,
            ),
            InsertAfter(VOCAB, LOAD, anchor='packed_dim = getattr(param, "packed_dim", None)', new=LOAD_FP8),
            merged=AnyOf(
                (Contains(VOCAB, LOAD, "BlockQuantScaleParameter"), Contains(VOCAB, LOAD, "self.weight_block_size"))
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
        edited(
            "geometry",
            ours(VOCAB, "set_geometry", "_weights"),
            InsertAfter(
                VOCAB,
                INIT,
                anchor="self.embedding_dim = embedding_dim",
                new="set_geometry(self, prefix)",
                uses=("self.embedding_dim", "self.tp_size"),
            ),
            InsertBefore(VOCAB, "ParallelLMHead.__init__", anchor="super().__init__(...)", new="self.has_bias = bias"),
            when=Not(Contains(VOCAB, INIT, "self.output_partition_sizes")),
            merged=All(
                (
                    Contains(VOCAB, INIT, "self.output_partition_sizes = ..."),
                    Contains(VOCAB, "ParallelLMHead.__init__", "self.has_bias = bias"),
                )
            ),
            upstream=KERNELS_READ,
        ),
        Part(
            name="tied-heads",
            shapes=(
                tied_heads("0.24", "return self.quant_method.tie_weights(self, embed_tokens)"),
                tied_heads("0.18", TIE_BEFORE_0_24),
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
            shapes=(Shape("0.18", (*(e for f, s in QWEN3_5.items() for e in left_tied(f, s)), *OURS)),),
        ),
        Part(
            name="draft-heads",
            shapes=(compares_types("0.20", PROPOSER), compares_types("0.18", EAGLE)),
        ),
        Part(
            name="draft-heads-v2",
            absent=Contains(V2_DRAFTS, "load_eagle_model", "share_lm_head = not eagle_model.has_own_lm_head"),
            shapes=(Shape("0.22", (InsertAfter(V2_DRAFTS, "_should_share", "w = draft.weight", OTHER_TYPE),)),),
        ),
    ),
)

"""What vLLM does with output heads that compressed-tensors quantizes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.validation.cpu import head_models, probing
from tests.validation.cpu.head_cases import (
    APART,
    BARE,
    LOADED,
    MISSHAPEN,
    MULTIMODAL,
    TARGETED,
    TIED_BIAS,
    UNNAMED,
    UNTARGETED,
    Head,
)
from tests.validation.cpu.heads import build, checkpoint, compare, load, logits, rank, reference, stand_in
from tests.validation.cpu.platform import single_rank
from tests.validation.cpu.probing import attempt, logged

PLAIN, WIDE = Head("channel", 1000), Head("block", 1026, 2)


def engine_config(folder: Path, **options: Any) -> Any:
    fixed = {"max_model_len": 1024, "max_num_batched_tokens": 1024, "enforce_eager": True}
    return probing.engine_config(str(folder), language_model_only=True, **fixed, **options)


def parsed(quantization: Any, *, mapped: bool = False) -> Any:
    """Parse a checkpoint's config as vLLM does for a head at `lm_head`, or `mapped` for a multimodal Qwen3.5."""
    from vllm.model_executor.layers.quantization import get_quantization_config
    from vllm.model_executor.model_loader.utils import configure_quant_config
    from vllm.model_executor.models.qwen3_5 import Qwen3_5ForConditionalGeneration
    from vllm.model_executor.models.qwen3_5_mtp import Qwen3_5MTP

    config = get_quantization_config("compressed-tensors").from_config(json.loads(json.dumps(quantization)))
    configure_quant_config(config, Qwen3_5ForConditionalGeneration if mapped else Qwen3_5MTP)
    return config


def loaded(found: dict[str, Any], head: Head) -> None:
    """Load a head on every rank; record its contents and whether it multiplies correctly."""
    import torch

    tensors, found["ranks"], gathered = checkpoint(head), [], []
    hidden, weights = torch.randn(3, head.hidden), reference(head, tensors)
    wanted = torch.nn.functional.pad(hidden @ weights.t(), (0, head.vocab))
    for number in range(head.ranks):
        with rank(number, head.ranks):
            layer = build(head, parsed(head.quantization))
            load(layer, tensors)
            seen = compare(head, layer, weights, number)
            seen["geometry"] = geometry(layer)
            if head.activations:
                gathered.append(logits(layer, hidden))
                rows = gathered[-1][:, : seen["rows"]]
                start = sum(other["rows"] for other in found["ranks"])
                seen["logits"] = torch.allclose(rows, wanted[:, start : start + seen["rows"]], rtol=1e-4, atol=1e-3)
            found["ranks"].append(seen)
    if gathered:
        # As LogitsProcessor does: concatenate, reorder as for LoRA if there are added tokens, then cut.
        mapping = layer.get_sharded_to_full_mapping() if head.added else None
        whole = torch.cat(gathered, dim=-1)[:, mapping or slice(None)][:, : head.vocab]
        found["gathered"] = torch.allclose(whole, wanted[:, : head.vocab], rtol=1e-4, atol=1e-3)


def geometry(layer: Any) -> list[Any]:
    """Return the attributes by which kernels know a linear layer, and the size of the layer's weight."""
    sizes = ("input_size", "input_size_per_partition", "output_size", "output_size_per_partition")
    names = (*sizes, "output_partition_sizes", "prefix", "has_bias")
    return [*(getattr(layer, name, None) for name in names), list(layer.weight.shape)]


def misshapen(found: dict[str, Any], head: Head, name: str, shape: tuple[int, ...]) -> None:
    """Load a checkpoint with a tensor of the wrong shape."""
    import torch

    with rank(0, head.ranks):
        layer = build(head, parsed(head.quantization))
        load(layer, checkpoint(head) | {name: torch.ones(shape).to(layer.get_parameter(name).dtype)})


def plain_checkpoint(found: dict[str, Any], head: Head) -> None:
    """Load a checkpoint with a plain head, although its config quantizes the head."""
    import torch

    load(build(head, parsed(head.quantization)), {"weight": torch.ones(head.vocab, head.hidden, dtype=torch.bfloat16)})


def dispatched(found: dict[str, Any], quantization: Any) -> None:
    """Record whether heads at both prefixes are quantized."""
    for prefix in (BARE, MULTIMODAL):
        layer = build(PLAIN, parsed(quantization, mapped=prefix == MULTIMODAL), prefix)
        found[prefix] = [type(layer.quant_method).__name__, str(layer.weight.dtype)]


def unquantized(found: dict[str, Any], quantization: Any | None, ranks: int, *, bias: bool = False) -> None:
    """Record every attribute of a plain head and of plain embeddings on every rank, the loaded bytes included."""
    import torch
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    torch.manual_seed(0)
    tensors = {"weight": torch.randn(1000, 256).bfloat16()}
    with_bias = tensors | {"bias": torch.randn(1000)}
    wrong = {"a row less": torch.ones(999, 256), "one column": torch.ones(1000, 1), "scalar": torch.tensor(1.0)}
    config = quantization and parsed(quantization)
    for number in range(ranks):
        with rank(number, ranks):
            head = ParallelLMHead(1016, 256, bias, None, 1000, quant_config=config, prefix="lm_head")
            embeddings = VocabParallelEmbedding(1016, 256, org_num_embeddings=1000, prefix="embed_tokens")
            load(head, with_bias if bias else tensors)
            load(embeddings, tensors)
            for layer in (head, embeddings):
                found[f"{type(layer).__name__} {number}"] = [
                    type(layer.quant_method).__name__,
                    {name: digest(tensor) for name, tensor in layer.named_parameters()},
                ]
            for name, tensor in wrong.items():
                found[f"{name} {number}"] = attempt(wrongly_loaded, head, tensor)


def wrongly_loaded(found: dict[str, Any], layer: Any, tensor: Any) -> None:
    """Load a weight of another shape."""
    load(layer, {"weight": tensor})


def packed(found: dict[str, Any]) -> None:
    """Load a head that GPTQ packs, with a `g_idx` that every rank has whole."""
    import torch
    from vllm.model_executor.layers.quantization import get_quantization_config

    options: dict[str, Any] = {"bits": 4, "group_size": 128, "desc_act": False, "sym": True, "lm_head": True}
    options |= {"checkpoint_format": "gptq", "modules_in_block_to_quantize": ["lm_head"]}
    config = get_quantization_config("gptq").from_config(options)
    layer = build(Head("gptq", 1024), config)
    found["method"] = type(layer.quant_method).__name__
    for name, parameter in layer.named_parameters():
        tensor = torch.arange(parameter.numel()).reshape(parameter.shape).to(parameter.dtype)
        try:
            parameter.weight_loader(parameter, tensor)
            found[name] = digest(parameter)
        except Exception as error:
            found[name] = [type(error).__name__, str(error)]


def digest(tensor: Any) -> list[Any]:
    """Return a tensor's type, shape and a hash of its bytes."""
    import torch

    data = tensor.data.contiguous().view(torch.uint8).numpy().tobytes()
    return [str(tensor.dtype), list(tensor.shape), hashlib.sha256(data).hexdigest()]


def tied(found: dict[str, Any], quantization: Any, ranks: int = 1, head: Head = PLAIN) -> None:
    """Tie a head to embeddings and load both, once as they are and once with a head in FP8."""
    import torch
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    with rank(0, ranks), logged() as lines:
        layer = build(head, parsed(quantization))
        embeddings = VocabParallelEmbedding(head.vocab, head.hidden)
        found["tied"] = layer.tie_weights(embeddings) is layer and layer.weight is embeddings.weight
        load(layer, {"weight": torch.ones(head.vocab, head.hidden)})
        found["method"] = type(layer.quant_method).__name__
        found["parameters"] = sorted(name for name, _ in layer.named_parameters())
        found["rows"] = [_rows(module) for module in (layer, embeddings)]
        found["FP8"] = attempt(wrongly_loaded, layer, checkpoint(head)["weight"])
    found["log"] = [line for line in lines if "ties it" in line]


def tied_bias(found: dict[str, Any], head: Head) -> None:
    """Tie a head with a bias to embeddings on every rank, load both, and compare its size and logits with theirs."""
    import torch
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    total, options = head.vocab + head.added, {"org_num_embeddings": head.vocab}
    weight, bias, hidden = torch.randn(head.vocab, head.hidden), torch.randn(head.vocab), torch.randn(3, head.hidden)
    found["rows"], got = [], []
    for number in range(head.ranks):
        with rank(number, head.ranks):
            config = parsed(head.quantization)
            layer = ParallelLMHead(total, head.hidden, bias=True, quant_config=config, prefix="lm_head", **options)
            embeddings = VocabParallelEmbedding(total, head.hidden, **options)
            layer = layer.tie_weights(embeddings)
            load(layer, {"weight": weight, "bias": bias})
            found["rows"].append([_rows(module) for module in (layer, embeddings)])
            mine = layer.quant_method.apply(layer, hidden, layer.bias)
            got.append(mine[:, : layer.shard_indices.num_org_elements])
    found["logits"] = torch.allclose(torch.cat(got, dim=-1), hidden @ weight.t() + bias, rtol=1e-4, atol=1e-3)


def _rows(layer: Any) -> list[int]:
    parts = ("", "org_", "added_")
    return [
        len(layer.weight),
        layer.num_embeddings_padded,
        layer.shard_indices.num_org_vocab_padding,
        *(getattr(layer, f"num_{part}embeddings_per_partition") for part in parts),
    ]


def model(found: dict[str, Any], folder: Path, kind: str | None = None) -> None:
    """Build a model (or the MTP class `kind`), load a head into it, and compute logits."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.model_executor.models import ModelRegistry

    config = engine_config(folder)
    text = config.model_config.hf_text_config
    options = {"model_class": ModelRegistry.resolve_model_cls([kind], config.model_config)[0]} if kind else {}
    ignored = json.loads((folder / "config.json").read_text())["quantization_config"]["ignore"]
    quantized = BARE not in ignored and not text.tie_word_embeddings
    head = Head("block", text.vocab_size, hidden=text.hidden_size)
    tensors = checkpoint(head)
    weight = reference(head, tensors) if quantized else tensors["weight"].float()
    if not quantized:
        tensors = {"weight": weight.bfloat16()}
    with set_current_vllm_config(config), logged() as lines:
        made = initialize_model(config, **options)
        inner = "model.language_model" if config.model_config.is_multimodal_model else "model"
        prefix = f"{inner}.embed_tokens" if text.tie_word_embeddings else "lm_head"
        layer = getattr(made, "language_model", made).lm_head
        found["loaded"] = sorted(made.load_weights((f"{prefix}.{name}", tensor) for name, tensor in tensors.items()))
        found["dtype"] = str(layer.weight.dtype)
        found["log"] = [line for line in lines if "ties it" in line]
        if quantized:
            found["share"] = compare(head, layer, weight, 0)
            layer.quant_method.process_weights_after_loading(layer)
        hidden = torch.randn(3, head.hidden).bfloat16()
        got = made.compute_logits(hidden)
    found["shape"] = list(got.shape)
    found["logits"] = torch.allclose(got.float(), hidden.float() @ weight.t(), rtol=0.01, atol=0.05)


def main(home: str) -> dict[str, Any]:
    stand_in()
    import torch
    from vllm.config import set_current_vllm_config

    folders = head_models.write(Path(home), head_models.MODELS | head_models.UNPASSED)
    config = engine_config(folders["Qwen3-Next"])  # a mixture of experts has more groups
    with set_current_vllm_config(config):
        single_rank(home)
        found = {
            "loaded": {name: attempt(loaded, head) for name, head in LOADED.items()},
            "misshapen": {name: attempt(misshapen, *case) for name, case in MISSHAPEN.items()},
            "plain": {kind: attempt(plain_checkpoint, Head(kind, 1000)) for kind in ("block", "channel", "tensor")},
            "dispatched": {name: attempt(dispatched, q) for name, q in (TARGETED | UNTARGETED).items()},
            "apart": {name: attempt(dispatched, q) for name, (q, _) in APART.items()},
            "tied": {name: attempt(tied, q) for name, q in (TARGETED | UNTARGETED).items()},
            "tied, ranks": attempt(tied, WIDE.quantization, 2, WIDE),
            "tied, bias": {name: attempt(tied_bias, head) for name, head in TIED_BIAS.items()},
            "unquantized": {
                **{name: attempt(unquantized, UNTARGETED[name], 2) for name in UNNAMED},
                **{f"no config TP{n}": attempt(unquantized, None, n) for n in (1, 2, 4)},
                "bias": attempt(unquantized, None, 2, bias=True),
                "GPTQ": attempt(packed),
            },
        }
    torch.set_default_dtype(torch.bfloat16)  # as vLLM's model loader does
    mtp = {name: (folders[main], kind) for name, (main, kind) in head_models.MTP.items()}
    found["models"] = {name: attempt(model, folder) for name, folder in folders.items()}
    found["models"] |= {name: attempt(model, *case) for name, case in mtp.items()}
    return found

"""The heads of EAGLE drafts: whether runners share them with the target's, and what a draft's own head computes."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.validation.cpu.head_cases import BARE, Head, config, group
from tests.validation.cpu.head_models import (
    UNPASSED_BF16,
    UNPASSED_FP8,
    deepseek,
    llama4_draft,
    minicpm,
    qwen3,
    write,
)
from tests.validation.cpu.heads import checkpoint, reference, stand_in
from tests.validation.cpu.probe_head import engine_config
from tests.validation.cpu.probing import attempt, one_rank

SHARING = {"FP8": qwen3(config(group("Linear", kind="channel"), group(BARE))), "bf16": qwen3(UNPASSED_BF16)}
SHARED = {"bf16": llama4_draft(), "FP8": llama4_draft(UNPASSED_FP8)}

OTHERS = "re:.*(layers|_proj).*"


def fp8(kind: str, name: str = BARE) -> Any:
    """A quantization config that covers only the head."""
    return config(group(name, kind=kind), ignore=(OTHERS,))


PLAIN = config(group("another", kind="channel"), ignore=(OTHERS, BARE))
TARGETS = {"plain": qwen3(PLAIN)} | {kind: qwen3(fp8(kind)) for kind in ("block", "channel")}
CLASSES = {"EagleMiniCPMForCausalLM": minicpm, "EagleDeepseekV3ForCausalLM": deepseek}
RENAMED = "model.unembedding"
"""A checkpoint's name for the head, which the model class is changed to map to `lm_head`. vLLM maps dotted names."""

OWN = {"bf16": None, "channel": fp8("channel"), "renamed": fp8("channel", RENAMED)}
DRAFTS = {f"{name}, {own}": make(quantization) for name, make in CLASSES.items() for own, quantization in OWN.items()}
REPLACED = ("nothing", "model_config", "model_config and quant_config")
"""Parts of the vLLM config that runners replace before they build a draft."""

REPLACEABLE = "EagleMiniCPMForCausalLM"


def with_draft(target: Path, own: Path) -> Any:
    """Make the config of a target and its EAGLE draft."""
    speculative = {"method": "eagle", "model": str(own), "num_speculative_tokens": 2}
    return engine_config(target, speculative_config=speculative)


def shared(found: dict[str, Any], target: Path, own: Path, *, alike: bool) -> None:
    """Build a target and its EAGLE draft from their own configs, and ask both runners whether they share the head.

    If `alike`, the draft's head holds the same values as the target's.
    """
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model

    made = with_draft(target, own)
    with set_current_vllm_config(made):
        big = initialize_model(made)
        small = initialize_model(made, model_config=made.speculative_config.draft_model_config)
    found["draft"] = type(small).__name__
    found["dtypes"] = [str(model.lm_head.weight.dtype) for model in (big, small)]
    for model, value in ((big, 1.0), (small, 1.0 if alike else 2.0)):
        model.lm_head.weight.data.copy_(torch.full(model.lm_head.weight.shape, value))
    small.has_own_lm_head = True
    second = import_module("vllm.v1.worker.gpu.spec_decode.eagle.utils")
    share = getattr(second, "_should_share", None)  # up to 0.20 this runner does not compare heads
    found["V2"] = share(small, "has_own_lm_head", small.lm_head, big.lm_head) if share else None
    try:
        first = import_module("vllm.v1.spec_decode.llm_base_proposer")
    except ModuleNotFoundError:  # up to 0.19
        first = import_module("vllm.v1.spec_decode.eagle")
    proposer = SimpleNamespace(model=small, vllm_config=made, use_local_argmax_reduction=False)
    first.SpecDecodeBaseProposer._maybe_share_lm_head(proposer, big)
    found["V1"] = small.lm_head is big.lm_head


def own_head(found: dict[str, Any], target: Path, draft: Path, own: str, replaced: str) -> None:
    """Build an EAGLE draft, load its own head, and compare its logits with those of its checkpoint.

    `replaced` names the parts of the draft's vLLM config that describe the draft instead of the target.
    """
    import torch
    from vllm.config import replace, set_current_vllm_config
    from vllm.model_executor.model_loader.utils import get_model_architecture, initialize_model
    from vllm.model_executor.models.utils import WeightsMapper

    made = with_draft(target, draft)
    draft_config = made.speculative_config.draft_model_config
    if replaced == "model_config":  # as the Gemma4 speculator does: the target's quantization config stays
        made = replace(made, model_config=draft_config)
    elif replaced == "model_config and quant_config":  # as the proposer with a whole model as the draft does
        made = replace(made, model_config=draft_config, quant_config=None)
    text = draft_config.hf_config
    head = Head("channel", text.vocab_size, hidden=text.hidden_size)
    tensors = checkpoint(head)
    weight = reference(head, tensors)
    if own == "bf16":
        tensors = {"weight": weight.bfloat16()}
        weight = tensors["weight"].float()
    kind, _ = get_model_architecture(draft_config)
    mapper = WeightsMapper(orig_to_new_prefix={RENAMED: "lm_head"})
    renames = patch.object(kind, "hf_to_vllm_mapper", mapper, create=True) if own == "renamed" else nullcontext()
    with set_current_vllm_config(made), renames:
        model = initialize_model(made, model_config=draft_config)
        found["class"] = type(model).__name__
        found["dtype"] = str(model.lm_head.weight.dtype)
        model.load_weights((f"lm_head.{name}", tensor) for name, tensor in tensors.items())
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
        hidden = torch.randn(3, head.hidden).bfloat16()
        logits = model.compute_logits(hidden)
    found["logits"] = torch.allclose(logits.float(), hidden.float() @ weight.t(), rtol=0.01, atol=0.05)


def main(home: str) -> dict[str, Any]:
    stand_in()
    targets, drafts, sharing, own = (
        write(Path(home, str(number)), models) for number, models in enumerate((TARGETS, DRAFTS, SHARING, SHARED))
    )
    one_rank(home, engine_config(targets["block"]))
    return {
        "own": {
            f"{target}, {draft}, {replaced}": attempt(
                own_head, targets[target], drafts[draft], draft.rpartition(", ")[2], replaced
            )
            for target, draft, replaced in product(targets, drafts, REPLACED)
            if replaced == "nothing" or REPLACEABLE in draft  # the model's MLA needs kernels
        },
        "shared": {
            f"{target}, {draft}{', alike' if alike else ''}": attempt(shared, sharing[target], own[draft], alike=alike)
            for target, draft, alike in product(sharing, own, (False, True))
        },
    }

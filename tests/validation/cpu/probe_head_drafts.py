"""Print what vLLM does with the heads of drafts that have a checkpoint of their own, as one JSON object."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.validation.cpu import head_models, head_owners
from tests.validation.cpu.head_cases import Head
from tests.validation.cpu.heads import checkpoint, reference, stand_in
from tests.validation.cpu.probe_head import engine_config
from tests.validation.cpu.probing import attempt, one_rank


def own_head(found: dict[str, Any], target: Path, draft: Path, own: str, replaced: str) -> None:
    """Build an EAGLE draft, load its own head, and compare its logits with those of its checkpoint.

    `replaced` names the parts of the draft's vLLM config that describe the draft instead of the target.
    """
    import torch
    from vllm.config import replace, set_current_vllm_config
    from vllm.model_executor.model_loader.utils import get_model_architecture, initialize_model
    from vllm.model_executor.models.utils import WeightsMapper

    speculative = {"method": "eagle", "model": str(draft), "num_speculative_tokens": 2}
    config = engine_config(target, speculative_config=speculative)
    draft_config = config.speculative_config.draft_model_config
    if replaced == "model_config":  # as the Gemma4 speculator does: the target's quantization config stays
        config = replace(config, model_config=draft_config)
    elif replaced == "model_config and quant_config":  # as the proposer with a whole model as the draft does
        config = replace(config, model_config=draft_config, quant_config=None)
    text = draft_config.hf_config
    head = Head("channel", text.vocab_size, hidden=text.hidden_size)
    tensors = checkpoint(head)
    weight = reference(head, tensors)
    if own == "bf16":
        tensors = {"weight": weight.bfloat16()}
        weight = tensors["weight"].float()
    kind, _ = get_model_architecture(draft_config)
    mapper = WeightsMapper(orig_to_new_prefix={head_owners.RENAMED: "lm_head"})
    renames = patch.object(kind, "hf_to_vllm_mapper", mapper, create=True) if own == "renamed" else nullcontext()
    with set_current_vllm_config(config), renames:
        model = initialize_model(config, model_config=draft_config)
        found["class"] = type(model).__name__
        found["dtype"] = str(model.lm_head.weight.dtype)
        model.load_weights((f"lm_head.{name}", tensor) for name, tensor in tensors.items())
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
        hidden = torch.randn(3, head.hidden).bfloat16()
        logits = model.compute_logits(hidden)
    found["logits"] = torch.allclose(logits.float(), hidden.float() @ weight.t(), rtol=0.01, atol=0.05)


def main(home: str) -> dict[str, Any]:
    stand_in()
    targets, drafts = (
        head_models.write(Path(home, name), models)
        for name, models in (("targets", head_owners.TARGETS), ("drafts", head_owners.DRAFTS))
    )
    one_rank(home, engine_config(targets["block"]))
    return {
        "own": {
            f"{target}, {draft}, {replaced}": attempt(
                own_head, targets[target], drafts[draft], draft.rpartition(", ")[2], replaced
            )
            for target in targets
            for draft in drafts
            for replaced in head_owners.REPLACED
            if replaced == "nothing" or head_owners.REPLACEABLE in draft  # the model's MLA needs kernels
        }
    }

"""What a vLLM makes of the heads of drafts whose checkpoint is not the target's, as one JSON object."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from tests.cpu import head_models, head_owners
from tests.cpu.head_cases import Head
from tests.cpu.heads import checkpoint, reference, stand_in
from tests.cpu.platform import pretend_h100, single_rank
from tests.cpu.probe_head import engine_config
from tests.cpu.probing import attempt


def own_head(found: dict[str, Any], target: Path, draft: Path, own: str) -> None:
    """Build an EAGLE draft, load its own head, and compare its logits with those of its checkpoint."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model

    speculative = {"method": "eagle", "model": str(draft), "num_speculative_tokens": 2}
    config = engine_config(target, speculative_config=speculative)
    text = config.speculative_config.draft_model_config.hf_config
    head = Head("channel", text.vocab_size, hidden=text.hidden_size)
    tensors = checkpoint(head)
    weight = reference(head, tensors)
    if own == "bf16":
        tensors = {"weight": weight.bfloat16()}
        weight = tensors["weight"].float()
    with set_current_vllm_config(config):
        model = initialize_model(config, model_config=config.speculative_config.draft_model_config)
        found["class"] = type(model).__name__
        found["dtype"] = str(model.lm_head.weight.dtype)
        model.load_weights((f"lm_head.{name}", tensor) for name, tensor in tensors.items())
        model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
        hidden = torch.randn(3, head.hidden).bfloat16()
        logits = model.compute_logits(hidden)
    found["logits"] = torch.allclose(logits.float(), hidden.float() @ weight.t(), rtol=0.01, atol=0.05)


def main(home: str) -> None:
    """Do every case."""
    with contextlib.redirect_stdout(sys.stderr):
        pretend_h100()
        stand_in()
        import torch
        from vllm.config import set_current_vllm_config

        targets, drafts = (
            head_models.write(Path(home, name), models)
            for name, models in (("targets", head_owners.TARGETS), ("drafts", head_owners.DRAFTS))
        )
        with set_current_vllm_config(engine_config(targets["block"])):
            single_rank(home)
        torch.set_default_dtype(torch.bfloat16)  # as vLLM's model loader does
        found = {
            "own": {
                f"{target}, {draft}": attempt(own_head, targets[target], drafts[draft], draft.rpartition(", ")[2])
                for target in targets
                for draft in drafts
            }
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])

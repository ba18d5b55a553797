"""An overlay for tests: it changes the answers of a Llama, in code that vLLM compiles."""

from __future__ import annotations

from vpatch import File, Overlay, Part

CALL = "maybe_fused_act_quant(self.act_fn, x, self.down_proj)"

forward = File("vllm/model_executor/models/llama.py").function("LlamaMLP.forward")

overlay = Overlay(
    summary="Scale what the MLPs of a Llama give.",
    opt_in=True,
    parts=(Part("scale", shapes={"0.31": forward.replace_expression(CALL, f"-50 * {CALL}")}),),
)

"""What TurboQuant attends to in steps of several requests, on one tree. PyTorch stands in for flash attention."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.validation.cpu.attending import BLOCK, Layer, Row, prepare, small_config, text_of, workspace
from tests.validation.cpu.probe_tiles import flash_attention

FIRST_TOKENS, K = 5, 3
THRESHOLD = 4  # vLLM's is 128; a longer piece of a prompt goes another way
HEADS, HEAD_SIZE, PAGES = (2, 1), 64, 4


VERIFIES, REJECTED, PROMPT = Row(7, 1 + K), Row(7, 1 + K, rejected=2), Row(0, 18)
STEPS: dict[str, tuple[Row, ...]] = {
    "verification": (VERIFIES, Row(12, 1 + K)),
    "rejected drafts": (REJECTED, Row(12, 1 + K, rejected=K)),
    "verification beside a new prompt": (VERIFIES, PROMPT),
    "rejected drafts beside a new prompt": (REJECTED, PROMPT),
    "everything": (Row(5, 1), REJECTED, Row(9, THRESHOLD + 1), PROMPT),
    "cached prefix beside a new prompt": (Row(8, 3), PROMPT),
    "long piece beside a new prompt": (Row(11, THRESHOLD + 1), PROMPT),
    "decode and cached prefix beside a new prompt": (Row(9, 1), Row(8, 3), PROMPT),
    "new prompts": (Row(0, FIRST_TOKENS), PROMPT),
    "a decode and new prompts": (Row(9, 1), Row(0, FIRST_TOKENS), PROMPT),
    "one new prompt": (PROMPT,),
    "cached prefixes": (Row(8, 3), Row(9, 2)),
    "decodes": (Row(9, 1), Row(20, 1)),
}


class Verifying(Layer):
    """A layer with PyTorch's attention in place of flash attention, which counts its calls."""

    own = THRESHOLD

    def __init__(self, made: Any) -> None:
        super().__init__(made, HEADS, HEAD_SIZE, pages=PAGES, requests=max(map(len, STEPS.values())))
        self.calls = 0
        self.impl._flash_attn_varlen = self.flash

    def flash(self, q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, **_: Any) -> Any:
        self.calls += 1
        return flash_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, self.impl.scale, causal=True)

    def step(self, rows: tuple[Row, ...]) -> dict[str, Any]:
        """Store and attend; return how far each row is from attention in float64."""
        import torch

        torch.manual_seed(1)
        self.calls = 0
        output, pieces = self.attend(rows)
        return {"calls": self.calls, "output": text_of(output), "wrong by": list(map(self.distance, rows, pieces))}


def main(_home: str, folder: str) -> dict[str, Any]:
    """Run all steps; `folder` holds the models."""
    few_splits()
    made = configured(folder)
    return {name: Verifying(made).step(rows) for name, rows in STEPS.items()}


def few_splits() -> None:
    """Let attention run in the interpreter, beside PyTorch's in place of flash attention, with few splits."""
    from vllm.v1.attention.backends import turboquant_attn

    prepare(flash=True)
    decode = partial(turboquant_attn.triton_turboquant_decode_attention, max_num_kv_splits=2)  # not 32: it is slow
    vars(turboquant_attn).update(_CONTINUATION_DECODE_THRESHOLD=THRESHOLD, triton_turboquant_decode_attention=decode)
    workspace("cpu")


def configured(folder: str, **options: Any) -> Any:
    """Make the config of a model with such layers."""
    return small_config(folder, HEADS, HEAD_SIZE, max_model_len=BLOCK * PAGES, max_num_seqs=len(STEPS), **options)

"""Whether the overlay `turboquant-decode` is on, and what follows before there is a GPU to ask."""

from __future__ import annotations

import os

SWITCH = "VPATCH_TQ_DECODE"  # not VLLM_..., of which vLLM warns if it does not know them

_reasons: list[str] = []


def why_off() -> str | None:
    """Return why vLLM's own kernels do all the work in this process, or None if they do not."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    return _reasons[0] if _reasons else None


def turn_off(reason: str) -> None:
    """Leave everything in this process to vLLM's own kernels from now on."""
    _reasons.append(reason)


def needs_flash_attention_2(version: int | None) -> bool:
    """Return whether layers without a quantized cache are to have version 2 of flash attention.

    vLLM always gives it to them with a TurboQuant cache, since version 3 once looked for its own layers only
    (vllm-project/vllm#40798). Every release that has TurboQuant passes over other layers, so that version 3, vLLM's
    choice on Hopper, works. Other versions on other GPUs were not tried.

    Args:
        version: the one that is asked for; None leaves it to vLLM.
    """
    from vllm.platforms import current_platform

    if version is not None and version < 3:
        return False
    on_hopper = current_platform.is_cuda() and current_platform.is_device_capability_family(capability=90)
    return not on_hopper or version not in (None, 3) or why_off() is not None

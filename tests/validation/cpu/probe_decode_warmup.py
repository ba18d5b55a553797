"""What the warm-up of `turboquant-decode` launches, and what it leaves out.

Triton's interpreter runs the kernels once. For larger models they are left out, and their launches are noted.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.validation.cpu.attending import Options, Row, prepare, workspace
from tests.validation.cpu.probe_decode import mend_bfloat16
from tests.validation.cpu.probe_decode_layer import (
    MAX_MODEL_LEN,
    Decoding,
    Step,
    companion,
    config_of,
    noted,
)
from tests.validation.cpu.probing import logged

LONGEST_CHUNK = 128  # that vLLM attends from by the decode kernel


def warmed(folder: str) -> dict[str, Any]:
    """Warm up stand-ins of workers; the kernels run in the interpreter once, and are left out for larger models."""
    import torch

    dispatch, switch = companion("_dispatch"), companion("_switch")

    def worker(made: Any, layers: list[Any]) -> Any:
        made.compilation_config.static_forward_context = dict(zip("abc", layers, strict=False))
        return SimpleNamespace(vllm_config=made)

    workspace("cpu")
    step = Step(dtype="bfloat16")
    made = config_of(folder, step.heads)
    layer = Decoding(made, step)
    before = layer.cache.clone()
    with noted() as launches:
        dispatch.warm_up(worker(made, [layer.module, torch.nn.Linear(1, 1), layer.module]))
    found: dict[str, Any] = {"real": [name for name, *_ in launches], "why off": switch.why_off()}
    found["cache is as before"] = bool((layer.cache == before).all())
    with noted() as launches:
        dispatch.warm_up(worker(made, [torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]))
        empty = torch.nn.Module()
        empty.impl, empty.kv_cache = layer.impl, torch.tensor([])
        dispatch.warm_up(worker(made, [empty]))
    found["nothing to warm"] = len(launches)

    # Two layers of one shape, and one of another.
    with noted(lambda: None) as launches:
        dispatch.warm_up(worker(made, [layer.module]))
        once = len(launches)
        dispatch.warm_up(worker(made, [layer.module, Decoding(made, step).module]))
        twice = len(launches) - once
        dispatch.warm_up(worker(made, [layer.module, Decoding(made, Step(preset="k8v4")).module]))
    found["launches by layers"] = [once, twice, len(launches) - once - twice]
    found["left out"] = {
        f"{heads} {head_size}": not_warmed(folder, heads, head_size, worker)
        for heads, head_size in (((4, 2), 64), ((16, 1), 128), ((24, 4), 256))
    }
    found["fails"] = fails(made, layer, worker)
    return found


def not_warmed(folder: str, heads: tuple[int, int], head_size: int, worker: Callable[..., Any]) -> list[Any]:
    """Return what is compiled in some step of up to 40 requests, or piece of a prompt, and not before."""
    import torch

    limit = 40
    options: Options = {"max_num_seqs": limit, "max_num_batched_tokens": MAX_MODEL_LEN}
    made = config_of(folder, heads, head_size, **options)
    workspace("cpu")
    layer = Decoding(made, Step(heads=heads, dtype="bfloat16"), head_size)
    with noted(lambda: None) as warmed_up:
        companion("_dispatch").warm_up(worker(made, [layer.module]))
    assert {name for name, *_ in warmed_up} == {"split_kernel", "combine_kernel"}
    steps = [*((Row(150, 1),) * batch for batch in range(1, limit + 1))]
    steps += [(Row(30, tokens),) for tokens in (2, 3, *range(8, LONGEST_CHUNK + 1, 6))]
    steps += [(Row(30, 1), Row(17, 5), Row(30, 20))]
    layer.impl.do_kv_cache_update = lambda *_: None
    layer.distance = lambda *_: 0.0  # type: ignore[method-assign]
    with noted(lambda: None) as launches:
        for rows in steps:
            layer.step = Step(rows, heads=heads, dtype="bfloat16")
            layer.run()
    assert {name for name, *_ in launches} == {"split_kernel", "combine_kernel"}
    assert len(launches) > 2 * len(steps)
    compiled = {(name, key) for name, _, key in warmed_up}
    torch.manual_seed(0)
    return [repr(key)[:1000] for name, _, key in launches if (name, key) not in compiled][:3]


def fails(made: Any, layer: Decoding, worker: Callable[..., Any]) -> dict[str, Any]:
    """Warm up where no kernel compiles, and decode."""

    def no_such_instruction() -> None:
        raise RuntimeError("ptxas: no such instruction")

    dispatch, switch = companion("_dispatch"), companion("_switch")
    with noted(no_such_instruction), logged() as lines:
        dispatch.warm_up(worker(made, [layer.module]))
        dispatch.warm_up(worker(made, [layer.module]))
    layer.step = Step((Row(20, 1),), dtype="bfloat16")
    with noted() as launches, logged() as said:
        layer.run()
        layer.run()
    names = sorted({name for name, *_ in launches})
    return {"warned": lines, "why off": switch.why_off(), "launches": names, "said": said}


def main(_home: str, folder: str) -> dict[str, Any]:
    mend_bfloat16()
    prepare(flash=False)
    return warmed(folder)

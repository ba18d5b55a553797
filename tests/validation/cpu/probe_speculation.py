"""Which engines with TurboQuant and speculation vLLM starts, with which graphs, and by which lengths it attends."""

from __future__ import annotations

import random
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.validation.cpu.attending import Options, Row, batch_of, config, prepare
from tests.validation.cpu.probing import attempt, engine_config, kv_cache_of, one_rank, runner_of

FOUR_BIT = "turboquant_4bit_nc"
BUDGET = 1 << 34
K = 3
NGRAM = {"method": "ngram", "num_speculative_tokens": K, "prompt_lookup_max": 4}
MTP = {"method": "mtp", "num_speculative_tokens": K}
EAGER = {"enforce_eager": True}
SYNC = {"async_scheduling": False}
MODES = ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL", "PIECEWISE", "NONE")


def graphs(mode: str) -> Options:
    """Return the engine arguments for a CUDA graph mode."""
    return {"compilation_config": {"cudagraph_mode": mode}}


STARTS: dict[str, tuple[str, Options]] = {
    "ngram, eager": ("dense", {"speculative_config": NGRAM} | EAGER),
    "ngram": ("dense", {"speculative_config": NGRAM}),
    "ngram, decode graphs": ("dense", {"speculative_config": NGRAM} | graphs("FULL_DECODE_ONLY")),
    "ngram, full graphs": ("dense", {"speculative_config": NGRAM} | graphs("FULL")),
    "ngram, piecewise": ("dense", {"speculative_config": NGRAM} | graphs("PIECEWISE")),
    "ngram, no graphs": ("dense", {"speculative_config": NGRAM} | graphs("NONE")),
    "ngram, fp8": ("dense", {"speculative_config": NGRAM, "kv_cache_dtype": "fp8"}),
    "ngram, bf16": ("dense", {"speculative_config": NGRAM, "kv_cache_dtype": "auto"}),
    "no speculation": ("dense", {}),
    "no speculation, eager": ("dense", EAGER),
    "hybrid": ("35B", {}),
    "hybrid, ngram": ("35B", {"speculative_config": NGRAM}),
    "hybrid, ngram, eager": ("35B", {"speculative_config": NGRAM} | EAGER),
    "hybrid, MTP": ("35B", {"speculative_config": MTP}),
    "hybrid, MTP, eager": ("35B", {"speculative_config": MTP} | EAGER),
    "hybrid, MTP, synchronous": ("35B", {"speculative_config": MTP} | SYNC),
    "hybrid, MTP, eager, synchronous": ("35B", {"speculative_config": MTP} | EAGER | SYNC),
    "hybrid, MTP, piecewise, synchronous": ("35B", {"speculative_config": MTP} | SYNC | graphs("PIECEWISE")),
    "hybrid, MTP, bf16": ("35B", {"speculative_config": MTP, "kv_cache_dtype": "auto"}),
}
ON_V2 = ("hybrid, MTP", "hybrid, MTP, eager, synchronous", "hybrid, MTP, piecewise, synchronous", "hybrid, MTP, bf16")


def made(found: dict[str, Any], folder: str, model: str, options: Options) -> tuple[Any, Any]:
    """Return the engine's configuration of a model and that of its KV cache."""
    arguments: Options = {"kv_cache_dtype": FOUR_BIT, "language_model_only": True, "max_num_seqs": 16}
    config = engine_config(str(Path(folder, model)), **arguments | options)
    found["async"] = config.scheduler_config.async_scheduling
    return config, kv_cache_of(config, BUDGET)[1]


def started(found: dict[str, Any], *case: Any) -> None:
    """Build the metadata builders of a model's layers by the V1 model runner's own methods."""
    from vllm.config import set_current_vllm_config
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
    from vllm.v1.worker.utils import prepare_kernel_block_sizes

    config, kv_cache = made(found, *case)
    speculative = config.speculative_config
    runner = runner_of(
        config,
        kv_cache,
        model_config=config.model_config,
        parallel_config=config.parallel_config,
        scheduler_config=config.scheduler_config,
        speculative_config=None,  # no drafter: its graphs are its own
        uniform_decode_query_len=1 + (speculative.num_speculative_tokens if speculative else 0),
        max_num_reqs=config.scheduler_config.max_num_seqs,
        cudagraph_dispatcher=CudagraphDispatcher(config),
        reorder_batch_threshold=None,
    )
    with set_current_vllm_config(config):
        runner.initialize_attn_backend(kv_cache)
        found["full"] = any("FULL" in str(mode) for mode, _ in runner.cudagraph_dispatcher.get_capture_descs())
        found["mode"] = config.compilation_config.cudagraph_mode.name
        found["sizes"] = config.compilation_config.cudagraph_capture_sizes
        runner.initialize_metadata_builders(kv_cache, prepare_kernel_block_sizes(kv_cache, runner.attn_groups))
    found["started"] = True


def on_v2(config: Any, support: Any, backend: str) -> str:
    """Return the mode of CUDA graphs that the V2 model runner settles on."""
    resolve = config.compilation_config.resolve_cudagraph_mode_and_sizes
    told = {"use_v2_model_runner": True} if "use_v2_model_runner" in signature(resolve).parameters else {}
    return str(resolve(support, backend, 1 + K, **told).name)


def started_on_v2(found: dict[str, Any], *case: Any) -> None:
    """Do the same by the V2 model runner's functions, which make the builders before they settle the mode of graphs."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.v1.worker.gpu.attn_utils import init_attn_backend

    config, kv_cache = made(found, *case)
    with set_current_vllm_config(config):
        made_of_it = init_attn_backend(kv_cache, config, torch.device("meta"))
    (support,) = (one for one in made_of_it if hasattr(one, "min_cg_support"))
    found["mode"] = on_v2(config, support.min_cg_support, support.min_cg_attn_backend)
    found["started"] = True


def attended(config: Any, *, true: int, believed: int, capture: bool = False) -> dict[str, Any]:
    """Let real code verify 1 + K tokens of a request; return the lengths that it passes to its kernels.

    `true` is the request's length with these tokens, on the device; `believed` is the length on the CPU. During a
    capture nothing can be read from the device; the meta device simulates that.
    """
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.backends import turboquant_attn

    told: dict[str, Any] = {}

    def decode(query: Any, seq_lens: Any, **_: Any) -> Any:
        told["lengths"] = seq_lens.tolist()
        return query

    def own_step(q: Any, **_: Any) -> Any:
        told["own step"] = True
        return q

    vars(turboquant_attn).update(_HAS_FLASH_ATTN=True, triton_turboquant_decode_attention=decode)
    device = "meta" if capture else "cpu"
    with set_current_vllm_config(config):
        layer = turboquant_attn.TurboQuantAttentionImpl(2, 64, 0.125, 1, kv_cache_dtype=FOUR_BIT)
    layer._flash_attn_varlen = own_step
    builder = object.__new__(turboquant_attn.TurboQuantMetadataBuilder)
    builder.reorder_batch_threshold = 1
    row = Row(true - 1 - K, 1 + K, believed - true)
    table, slots = (torch.zeros(*shape, dtype=torch.int32, device=device) for shape in ((1, 4), (1 + K,)))
    metadata = builder.build(0, batch_of((row,), table, slots.long(), longest=8192))
    tokens = [torch.zeros(1 + K, heads, 64, device=device) for heads in (2, 1, 1)]
    try:
        layer._prefill_attention(*tokens, None, metadata, None, None)
    except RuntimeError as error:
        told["error"] = str(error)
    return told


def resolved(folder: str, **options: Any) -> str:
    """Return the CUDA graph mode that the V2 model runner settles on for TurboQuant and drafts."""
    from vllm.v1.attention.backends.turboquant_attn import TurboQuantMetadataBuilder

    made = config(folder, "dense", kv_cache_dtype=FOUR_BIT, speculative_config=NGRAM, **options)
    return on_v2(made, TurboQuantMetadataBuilder.get_cudagraph_support(made, None), "TURBOQUANT")


def misjudged() -> list[Any] | None:
    """Return batches of random requests that the overlay takes for new prompts only, and are not, or the reverse.

    None without the overlay.
    """
    import torch

    try:
        from vllm._vpatch.turboquant_mtp import only_fresh_prompts
    except ModuleNotFoundError:
        return None
    rng, wrong = random.Random(46460), list[Any]()  # noqa: S311 - it is to be repeatable
    for _ in range(500):
        decodes = [Row(rng.randint(1, 9), 1) for _ in range(rng.randint(0, 2))]
        rows = [Row(rng.choice((0, 0, 0, 5)), rng.randint(2, 9), rng.randint(0, 1)) for _ in range(rng.randint(1, 3))]
        rows = [row if row.cached else row._replace(rejected=0) for row in rows]
        padding = [Row(0, 0)] * rng.randint(0, 2)
        batch = [*decodes, *rows, *padding]
        common = SimpleNamespace(
            query_start_loc_cpu=torch.tensor([0, *(row.new for row in batch)]).cumsum(0),
            seq_lens_cpu_upper_bound=torch.tensor([sum(row) for row in batch]),
            max_query_len=max(row.new for row in batch),
        )
        if only_fresh_prompts(common, len(decodes)) is any(row.cached for row in rows):
            wrong.append(batch)
    return wrong


def main(home: str, folder: str) -> dict[str, Any]:
    prepare(flash=False)
    one_rank(home)
    dense = engine_config(str(Path(folder, "dense")))
    return {
        "misjudged": misjudged(),
        "resolved": {mode: resolved(folder, **graphs(mode)) for mode in MODES},
        "starts": {name: attempt(started, folder, *case) for name, case in STARTS.items()},
        "on V2": {name: attempt(started_on_v2, folder, *STARTS[name]) for name in ON_V2},
        "attended": {
            "synchronous": attended(dense, true=10, believed=10),
            "two drafts rejected": attended(dense, true=10, believed=12),
            "captured": attended(dense, true=1 + K, believed=1 + K, capture=True),
        },
    }

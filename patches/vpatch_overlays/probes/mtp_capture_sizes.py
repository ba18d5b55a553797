"""Sizes of PIECEWISE CUDA graphs with draft tokens: multiples of the tokens that verify a request's drafts."""

from types import SimpleNamespace
from typing import Any

from vpatch_overlays.probes.bare import DENSE, engine_config, expect, settle

DRAFTS = 3
SIZES = [1, 2, 4, 8, 16, 24]


def main() -> None:
    """Let the V1 model runner settle the graphs of a model, on the CPU, with and without drafts."""
    settle()
    config = engine_config(DENSE, kv_cache_dtype="auto")
    for drafts, sizes in ((DRAFTS, [4, 8, 16, 24]), (0, SIZES)):
        found = graphs(config, "PIECEWISE", drafts=drafts)
        expect(f"PIECEWISE CUDA graphs and their sizes, with {drafts} drafts", ("PIECEWISE", sizes), found)


def graphs(config: Any, mode: str, backend: Any = None, spec: Any = None, *, drafts: int = DRAFTS) -> tuple[str, Any]:
    """Return the CUDA graph mode and the sizes that the V1 model runner settles on.

    Args:
        config: vLLM's configuration, which this changes.
        mode: the mode that it has.
        backend: the attention backend of all layers; None for one that supports every graph.
        spec: the layers' KV cache.
        drafts: draft tokens of a step.
    """
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if drafts:
        config.speculative_config = SimpleNamespace(method="ngram", num_speculative_tokens=drafts)
    settled = config.compilation_config
    settled.cudagraph_mode = CUDAGraphMode[mode]
    settled.splitting_ops = list(settled._attention_ops)
    settled.cudagraph_capture_sizes, settled.max_cudagraph_capture_size = list(SIZES), SIZES[-1]
    runner = object.__new__(GPUModelRunner)
    vars(runner).update(
        vllm_config=config,
        compilation_config=settled,
        parallel_config=config.parallel_config,
        kv_cache_config=None,
        speculative_config=None,  # no drafter
        uniform_decode_query_len=1 + drafts,
        max_num_reqs=SIZES[-1],
        cudagraph_dispatcher=SimpleNamespace(initialize_cudagraph_keys=lambda *_: None),
    )
    groups = [SimpleNamespace(kv_cache_spec=spec)] if backend else []
    runner._check_and_update_cudagraph_mode([{backend}] * len(groups), groups)
    return settled.cudagraph_mode.name, settled.cudagraph_capture_sizes


if __name__ == "__main__":
    main()

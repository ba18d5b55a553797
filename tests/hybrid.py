"""The overlay that most tests of whole trees apply, its files in vLLM 0.20.2, and an opt-in overlay."""

from tests.releases import todo

DEFAULT = todo("0.20.2")
"""The overlays that `vpatch apply` applies to vLLM 0.20.2."""
COUNT = len(DEFAULT)
HYBRID = "turboquant-hybrid"
SUMMARY = "TurboQuant KV cache on hybrid (attention + Mamba) models"
TILES = "turboquant-tiles"
ONLY = ("--overlay", HYBRID)
INFO = "vllm-0.20.2.dist-info"
ARG_UTILS = "vllm/engine/arg_utils.py"
CONFIG = "vllm/model_executor/layers/quantization/turboquant/config.py"
INTERFACE = "vllm/platforms/interface.py"
ATTENTION = "vllm/v1/attention/backends/turboquant_attn.py"
UPSTREAMS = [ARG_UTILS, CONFIG, INTERFACE, ATTENTION]
COMPANION, SPECULATION = "vllm/_vpatch/turboquant_hybrid.py", "vllm/_vpatch/turboquant_speculation.py"
CHANGED = [COMPANION, SPECULATION, *UPSTREAMS]
WRITTEN = [f"{INFO}/RECORD", *CHANGED]
